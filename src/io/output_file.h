// A file that appears complete or not at all.
#pragma once
#include <cstddef>
#include <span>
#include <stop_token>
#include <string>

namespace qkv::io {

/// Writes under a temporary name in the same folder; commit() renames. Without commit() nothing stays. A link is followed.
/// A target that is no regular file (a pipe, /dev/null) cannot be replaced: the bytes are copied into it by commit().
class OutputFile {
 public:
  /// `function` begins the messages. Throws FileError.
  OutputFile(std::string function, const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Throws Cancelled where a stop is requested meanwhile.
  void write(std::span<const std::byte> bytes, const std::stop_token& stop = {});
  /// The name to write to by other means, instead of write().
  const std::string& temporary() const { return temporary_; }
  void commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;
  void close();
  void copy_into_target();
  std::string function_, path_, temporary_;
  int descriptor_ = -1;
  bool replaces_ = true;
};

}  // namespace qkv::io
