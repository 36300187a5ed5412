// Memory for files: aligned, and never more of it than a file can back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "qkv/io.h"

namespace qkv::io {

inline constexpr size_t kAlignment = 64;

/// Uninitialised, 64-byte aligned; also for 0 bytes. Throws std::bad_alloc, also where the system would promise the memory
/// and end the process when it is touched.
Array::Memory allocate(size_t bytes);

/// Bytes that can be had without taking them from others; all there could be where the system does not say.
uint64_t available_memory();

/// Bytes of a tensor of this shape; nothing where a size is negative or the product of the sizes that are not 0 leaves
/// 63 bits (so that no stride overflows either, even where another axis is empty).
std::optional<uint64_t> checked_bytes(std::span<const int64_t> shape, size_t element);

/// Turns the bytes of each element round.
void swap_elements(std::byte* data, size_t bytes, size_t element);
/// A bool that is neither 0 nor 1 is undefined behaviour in C++, so none leaves a reader.
void make_bools(std::byte* data, size_t bytes);

/// Where bytes come from.
class Source {
 public:
  virtual ~Source() = default;
  /// Up to `bytes` of them; 0 at the end. Throws FileError where reading fails.
  virtual size_t read(void* to, size_t bytes) = 0;
  /// At most this many bytes are left, where that is known.
  virtual std::optional<uint64_t> left() const = 0;
  /// Whether those are certain to come; of a deflated entry they are what an archive claims.
  virtual bool backed() const { return left().has_value(); }
};

/// A file or a pipe. Throws FileError where it cannot be opened.
class FileSource final : public Source {
 public:
  explicit FileSource(std::string path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  size_t read(void* to, size_t bytes) override;
  std::optional<uint64_t> left() const override { return left_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::optional<uint64_t> left_;
};

/// Bytes that lie in memory.
class MemorySource final : public Source {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t read(void* to, size_t bytes) override;
  std::optional<uint64_t> left() const override { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

/// Reads until `bytes` are there or the source ends; says how many came.
size_t read_fully(Source&, void* to, size_t bytes);

/// Reads exactly `bytes`. Where it is not certain that they come, memory grows only as they do, so that a claim of 60 GiB in
/// front of 100 bytes costs little. Nothing where the source ends before. Throws std::bad_alloc before the first byte where the
/// whole would not fit.
std::optional<Array::Memory> read_array_bytes(Source&, uint64_t bytes);

}  // namespace qkv::io
