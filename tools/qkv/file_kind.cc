#include "qkv/file_kind.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

namespace fs = std::filesystem;

constexpr size_t kLeastBytes = 5;  // of fewer nobody can tell the kind
constexpr const char* kExpected = "expected .npy, .npz or .safetensors";

/// Kinds have the name of their usual ending; {0} of their advice is the file.
struct Kind {
  std::string_view name, what, advice;
};
constexpr Kind kKinds[] = {
    {".npy", "an .npy", ""},
    {".npz", "an .npz", ""},
    {".safetensors", "a .safetensors", ""},
    {".pt", "a file of PyTorch",
     "in Python: `import safetensors.torch, torch; safetensors.torch.save_file(torch.load({0}), \"out.safetensors\")`"},
    {".h5", "a file of HDF5",
     "in Python: `import h5py, numpy; f = h5py.File({0}); numpy.savez(\"out.npz\", **{{n: f[n][()] for n in f}})`"},
    {".pkl", "a pickle of Python",
     "in Python: `import numpy; numpy.savez(\"out.npz\", **numpy.load({0}, allow_pickle=True))`"},
    {".csv", "a table of numbers as text",
     "in Python: `import numpy; numpy.save(\"out.npy\", numpy.loadtxt({0}, delimiter=\",\"))`"},
    {".txt", "text", "of numbers, in Python: `import numpy; numpy.save(\"out.npy\", numpy.loadtxt({0}))`"},
    {".json", "JSON", "it belongs beside a file of tensors"},
    {".gguf", "a file of llama.cpp", "save its tensors as .safetensors"},
    {".onnx", "a file of ONNX", "save its tensors as .safetensors"},
    {".gz", "compressed by gzip", "unpack it with gunzip"},
    {".zip", "a zip archive of other files", "unpack it"},
    {".png", "a PNG picture", "give the tensors that it was drawn from"},
    {".jpg", "a JPEG picture", "give the tensors that it was drawn from"},
    {".pdf", "a PDF", "give the tensors that it shows"},
};

const Kind* kind_named(std::string_view name) {
  const auto* at = std::ranges::find(kKinds, name, &Kind::name);
  return at == std::end(kKinds) ? nullptr : at;
}

struct Alias {
  std::string_view from, to;
};
constexpr Alias kBeginnings[] = {{"\x93NUMPY", ".npy"}, {"\x89PNG", ".png"}, {"\xff\xd8\xff", ".jpg"},
                                 {"\x89HDF", ".h5"},    {"GGUF", ".gguf"},   {"\x1f\x8b", ".gz"},
                                 {"%PDF", ".pdf"}};
constexpr Alias kEndings[] = {{".pth", ".pt"},  {".ckpt", ".pt"},    {".bin", ".pt"},
                              {".hdf5", ".h5"}, {".pickle", ".pkl"}, {".jpeg", ".jpg"}};

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t n = bytes.size(); n-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[n]);
  return value;
}

/// Of a zip: what the name of its first entry says; np.savez and torch.save name theirs always so.
std::string_view kind_of_zip(std::string_view head) {
  constexpr size_t kName = 30;  // where the name stands in a local header, with its length at 26
  if (head.size() < kName) return "";
  const std::string_view entry = head.substr(kName, little_endian(head.substr(26, 2)));
  return entry.ends_with(".npy") ? ".npz" : entry.ends_with("/data.pkl") ? ".pt" : "";
}

/// What the first bytes prove; empty where they prove nothing.
std::string_view kind_of_bytes(std::string_view head, uintmax_t size) {
  if (head.starts_with("PK\x03\x04")) return kind_of_zip(head);
  if (head.size() > 8 && head[8] == '{' && little_endian(head.substr(0, 8)) <= size - 8) return ".safetensors";
  const auto* at = std::ranges::find_if(kBeginnings, [&](const Alias& b) { return head.starts_with(b.from); });
  return at == std::end(kBeginnings) ? "" : at->to;
}

/// What the first bytes look like, of kinds that have no mark of their own.
std::string_view guess(std::string_view head) {
  if (head.starts_with("PK\x03\x04")) return ".zip";
  if (head.size() > 1 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) return ".pkl";
  const auto is_text = [](unsigned char c) { return c >= ' ' || c == '\t' || c == '\n' || c == '\r'; };
  return std::ranges::all_of(head, is_text) ? ".txt" : "";
}

std::string_view promised(std::string_view path) {
  for (const std::string_view ending : {".npz", ".safetensors"}) {
    if (path.ends_with(ending)) return ending;
  }
  return ".npy";
}

/// Nothing where neither bytes nor name tell.
const Kind* kind_of(const std::string& path, std::string_view head, uintmax_t size) {
  if (const Kind* kind = kind_named(kind_of_bytes(head, size))) return kind;
  std::string ending = fs::path(path).extension().string();
  if (const auto* at = std::ranges::find(kEndings, ending, &Alias::from); at != std::end(kEndings)) ending = at->to;
  const Kind* named = kind_named(ending);
  return named != nullptr && !named->advice.empty() ? named : kind_named(guess(head));
}

[[noreturn]] void refuse(const std::string& path, const Kind* kind) {
  if (kind == nullptr) throw FileError(fmt::format("{} is no file of tensors, {}", path, kExpected));
  if (kind->advice.empty())
    throw FileError(fmt::format("{} is {}; give it a name that ends in {}", path, kind->what, kind->name));
  const std::string name =  // as Python reads it
      nlohmann::json(path).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  throw FileError(
      fmt::format("{} is {}, {}; {}", path, kind->what, kExpected, fmt::format(fmt::runtime(kind->advice), name)));
}

}  // namespace

void expect_tensors(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_fifo(status)) return;
  if (fs::is_directory(status)) throw FileError(fmt::format("{} is a folder, {}", path, kExpected));
  if (fs::is_character_file(status) || fs::is_block_file(status))
    throw FileError(fmt::format("{} is a device, {}", path, kExpected));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw FileError(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  std::string head(512, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  if (head.empty()) throw FileError(fmt::format("{} is empty, {}; write it again", path, kExpected));
  if (head.size() < kLeastBytes && path.ends_with(promised(path)))
    throw FileError(fmt::format("{} has {} bytes, too few for a file of tensors; it is cut short, fetch it again", path,
                                head.size()));
  const Kind* kind = kind_of(path, head, fs::file_size(path, error));
  const std::string_view name = promised(path);
  if (kind == nullptr ? name == ".npy" : kind->name != name && !(kind->name == ".zip" && name == ".npz"))
    refuse(path, kind);
}

}  // namespace qkv::cli
