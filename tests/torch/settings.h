// What a test in Python says to a program: texts beside the tensors of a .safetensors.
#pragma once
#include <map>
#include <stdexcept>
#include <string>

#include "qkv/io.h"

namespace qkv::torch_tests {

class Settings {
 public:
  explicit Settings(const Safetensors& file) : texts_(&file.metadata()) {}
  std::string text(const std::string& key) const {
    const auto found = texts_->find(key);
    if (found == texts_->end()) throw std::runtime_error("the file's metadata lack " + key);
    return found->second;
  }
  std::string text_or(const std::string& key, const std::string& otherwise) const {
    return texts_->contains(key) ? text(key) : otherwise;
  }
  int64_t whole(const std::string& key, int64_t otherwise = 0) const {
    return texts_->contains(key) ? std::stoll(text(key)) : otherwise;
  }
  double number(const std::string& key) const { return std::stod(text(key)); }
  bool is_on(const std::string& key) const { return text_or(key, "0") == "1"; }

 private:
  const std::map<std::string, std::string, std::less<>>* texts_;
};

}  // namespace qkv::torch_tests
