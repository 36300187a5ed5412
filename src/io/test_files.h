// Helpers of the tests of this folder: a scratch folder, whole files as bytes.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace qkv::io {

/// A folder that goes away with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "qkv-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline std::string fixture(const std::string& name) { return std::string(QKV_SOURCE_DIR) + "/tests/data/" + name; }

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void put_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A .safetensors: the header's length, the header as it is, the data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int n = 0; n < 8; ++n) bytes += static_cast<char>(uint64_t{header.size()} >> (8 * n) & 0xFF);
  return bytes + header + data;
}

/// What the exception of `call` says; empty where it throws nothing of that type.
template <class Exception, class F> std::string message_of(F call) {
  try {
    call();
  } catch (const Exception& e) {
    return e.what();
  }
  return {};
}

}  // namespace qkv::io
