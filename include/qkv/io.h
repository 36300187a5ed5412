// Tensors in files: NumPy's .npy and .npz, and .safetensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/array.h"

namespace qkv {

/// Reads one .npy file: versions 1 to 3, C and Fortran order, float16/32/64, bool, all integers; big-endian numbers are
/// converted, bool is 0 or 1 whatever the byte was. Object arrays, records, strings, complex numbers and dates are refused.
/// `path` may be a pipe. Throws FileError, also where the file is longer or shorter than its header says.
QKV_EXPORT Array read_npy(const std::string& path);

/// Writes `tensor` in C order; bfloat16, which NumPy does not have, as float32. Under another name in the same folder,
/// renamed when complete: a failure (disk full, ...) throws FileError and leaves what was there, and so does a requested
/// stop, with Cancelled.
QKV_EXPORT void write_npy(const std::string& path, View<const void> tensor, std::stop_token stop = {});

/// How an .npz is read.
struct NpzLimits {
  uint64_t entry_bytes =
      uint64_t{64} << 30;  ///< an entry that claims more is refused (a small file can claim anything)
};

/// An .npz: a zip of .npy files, stored or deflated. Not for use by two threads at the same time.
class QKV_EXPORT Npz {
 public:
  /// Throws FileError: not a zip, damaged, encrypted, a name twice.
  explicit Npz(const std::string& path, const NpzLimits& = {});
  ~Npz();
  Npz(Npz&&) noexcept;
  Npz& operator=(Npz&&) noexcept;

  const std::vector<std::string>& names() const;  ///< in the file's order, without ".npy"
  bool contains(std::string_view name) const;
  /// Throws FileError: no such name (the message lists what there is), or damaged.
  Array read(std::string_view name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A .safetensors: names, types, shapes and the tensors' bytes, float16 and bfloat16 among them. Everything that the header
/// says is checked when it is opened: no byte of the data belongs to two tensors or to none. Not for use by two threads at the
/// same time.
class QKV_EXPORT Safetensors {
 public:
  /// Throws FileError: no regular file, damaged, a name twice, a type that the format does not have.
  explicit Safetensors(const std::string& path);
  ~Safetensors();
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;

  const std::vector<std::string>& names() const;  ///< in the order of the data
  /// The texts of __metadata__, by their keys.
  const std::map<std::string, std::string, std::less<>>& metadata() const;
  bool contains(std::string_view name) const;
  /// A copy. Throws FileError: no such name (the message lists what there is), float8 and other types that tensors do not have
  /// here, or a file that became shorter since it was opened.
  Array read(std::string_view name) const;
  /// The tensor where it lies in the file, mapped read-only, without a copy; valid as long as this object. Absent (rank 0)
  /// where there is none: its bytes are not aligned to its elements, or it is bool (any byte may lie there): read() it.
  /// A file that another process cuts short while it is looked at ends this one with SIGBUS, as every mapping does; read()
  /// throws instead. Throws as read(), and ShapeError above rank 4.
  View<const void> view(std::string_view name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct NamedTensor {
  std::string name;  ///< without ".npy"
  View<const void> view{};
};
enum class Compression : uint8_t { kStored, kDeflate };

/// Writes all tensors in C order, as they are in type, and texts beside them, into one .safetensors that appears complete or not
/// at all; data begin at a multiple of 64 bytes. The same tensors give the same bytes. Throws FileError; ArgumentError for a name
/// that is empty, twice or reserved (__metadata__), for text that is no UTF-8; Cancelled.
QKV_EXPORT void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                                  const std::map<std::string, std::string, std::less<>>& metadata = {},
                                  std::stop_token stop = {});

/// Writes all tensors, each as write_npy does, into one file that appears complete or not at all. The same tensors give
/// the same bytes. Throws FileError; ArgumentError for a name that is empty or twice; Cancelled.
QKV_EXPORT void write_npz(const std::string& path, std::span<const NamedTensor> tensors,
                          Compression = Compression::kStored, std::stop_token stop = {});

}  // namespace qkv
