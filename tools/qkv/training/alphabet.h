// The tokens of a text: its characters, or bytes.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::cli {

/// Characters are Unicode code points, numbered in their order; bytes are numbered by themselves.
class Alphabet {
 public:
  static Alphabet bytes();
  /// The characters that a text has. Throws FileError where it is no UTF-8, with the place; `file` is named.
  static Alphabet of(std::string_view text, const std::string& file);
  /// What json() gave. Throws FileError.
  static Alphabet from(const nlohmann::json&);
  nlohmann::json json() const;

  int64_t size() const { return is_bytes_ ? 256 : int64_t(characters_.size()); }
  /// Throws FileError: no UTF-8, or a character that the alphabet does not have, with its place.
  std::vector<int32_t> encode(std::string_view text, const std::string& file) const;
  std::string decode(int32_t token) const;

 private:
  bool is_bytes_ = false;
  std::vector<int32_t> characters_;     // rising
  std::map<int32_t, int32_t> numbers_;  // of a code point
  void add(int32_t character);
};

}  // namespace qkv::cli
