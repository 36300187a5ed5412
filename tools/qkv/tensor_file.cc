#include "qkv/tensor_file.h"

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/file_kind.h"

namespace qkv::cli {

namespace {

constexpr std::string_view kEndings[] = {".npz", ".safetensors"};

std::variant<Npz, Safetensors> opened(const std::string& path) {
  expect_tensors(path);
  if (path.ends_with(kEndings[0])) return Npz(path);
  return Safetensors(path);
}

}  // namespace

bool TensorFile::is_one(std::string_view path) { return path.ends_with(kEndings[0]) || path.ends_with(kEndings[1]); }

TensorFile::TensorFile(const std::string& path) : file_(opened(path)) {}

const std::vector<std::string>& TensorFile::names() const {
  return std::visit([](const auto& file) -> const std::vector<std::string>& { return file.names(); }, file_);
}

Array TensorFile::read(std::string_view name) const {
  return std::visit([&](const auto& file) { return file.read(name); }, file_);
}

Array read_array(const std::string& path) {
  expect_tensors(path);
  return read_npy(path);
}

std::string file_of(const std::string& where) {
  for (const std::string_view ending : kEndings) {
    const size_t colon = where.rfind(std::string(ending) + ":");
    if (colon != where.npos) return where.substr(0, colon + ending.size());
  }
  return where;
}

Array read_tensor(const std::string& where) {
  for (const std::string_view ending : kEndings) {
    const size_t colon = where.rfind(std::string(ending) + ":");
    if (colon == where.npos) continue;
    const size_t name = colon + ending.size();
    return TensorFile(where.substr(0, name)).read(where.substr(name + 1));
  }
  if (!TensorFile::is_one(where)) return read_array(where);
  const TensorFile file(where);
  if (file.names().size() == 1) return file.read(file.names().front());
  throw OptionError(fmt::format("{} holds {} tensors; say which: {}:NAME", where, file.names().size(), where));
}

}  // namespace qkv::cli
