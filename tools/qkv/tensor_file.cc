#include "qkv/tensor_file.h"

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

constexpr std::string_view kEndings[] = {".npz", ".safetensors"};

std::variant<Npz, Safetensors> opened(const std::string& path) {
  if (path.ends_with(kEndings[0])) return Npz(path);
  return Safetensors(path);
}

/// Formats of others, with how to convert them.
struct Foreign {
  std::string_view ending, advice;
};
constexpr std::string_view kTorch = "in Python: safetensors.torch.save_file(torch.load(FILE), \"out.safetensors\")";
constexpr Foreign kForeign[] = {
    {".pt", kTorch},
    {".pth", kTorch},
    {".bin", kTorch},
    {".pkl", "in Python: numpy.savez(\"out.npz\", q=q, k=k, v=v)"},
    {".h5", "in Python: numpy.savez(\"out.npz\", q=file[\"q\"][()], ...)"},
    {".gguf", "save its tensors as .safetensors"},
    {".onnx", "save its tensors as .safetensors"},
    {".json", "it belongs beside a file of tensors"},
};

}  // namespace

bool TensorFile::is_one(std::string_view path) { return path.ends_with(kEndings[0]) || path.ends_with(kEndings[1]); }

TensorFile::TensorFile(const std::string& path) : file_(opened(path)) {}

const std::vector<std::string>& TensorFile::names() const {
  return std::visit([](const auto& file) -> const std::vector<std::string>& { return file.names(); }, file_);
}

Array TensorFile::read(std::string_view name) const {
  return std::visit([&](const auto& file) { return file.read(name); }, file_);
}

void expect_known_format(const std::string& path) {
  for (const Foreign& f : kForeign) {
    if (path.ends_with(f.ending))
      throw OptionError(fmt::format("{}: expected .npy, .npz or .safetensors; {}", path, f.advice));
  }
}

Array read_array(const std::string& path) {
  expect_known_format(path);
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
