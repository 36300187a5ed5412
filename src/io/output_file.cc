#include "io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::io {

namespace fs = std::filesystem;

namespace {

/// Writes everything, or returns errno.
int write_fully(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t most = size_t{1} << 30;
    const ssize_t done = ::write(descriptor, bytes.data(), std::min(bytes.size(), most));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return 0;
}

}  // namespace

OutputFile::OutputFile(std::string function, const std::string& path) : function_(std::move(function)), path_(path) {
  std::error_code ignored;
  fs::path target = path;
  if (fs::is_symlink(target, ignored) && fs::exists(target, ignored)) target = fs::canonical(target, ignored);
  if (fs::is_directory(target, ignored)) fail("is a folder, expected a file name", 0);
  replaces_ = !fs::exists(target, ignored) || fs::is_regular_file(target, ignored);
  path_ = target.string();
  const fs::path folder = replaces_ ? target.parent_path() : fs::temp_directory_path();
  for (int n = 0; descriptor_ < 0; ++n) {
    temporary_ = (folder / fmt::format(".qkv.{}.{}.tmp", ::getpid(), n)).string();
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) {
      const int error = errno;
      temporary_.clear();
      fail("cannot be written", error);
    }
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* what, int error) const {
  const std::string reason = error != 0 ? fmt::format(": {}", std::strerror(error)) : "";
  throw FileError(fmt::format("{}: {} {}{}; choose another place", function_, path_, what, reason));
}

void OutputFile::write(std::span<const std::byte> bytes, const std::stop_token& stop) {
  constexpr size_t kPiece = size_t{16} << 20;  // far below a second, whatever the disk
  while (!bytes.empty()) {
    if (stop.stop_requested()) throw Cancelled(fmt::format("{}: stopped before {} was complete", function_, path_));
    const std::span<const std::byte> piece = bytes.first(std::min(bytes.size(), kPiece));
    if (const int error = write_fully(descriptor_, piece)) fail("cannot be written", error);
    bytes = bytes.subspan(piece.size());
  }
}

void OutputFile::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail("cannot be written", errno);  // where network file systems report a full disk
}

void OutputFile::copy_into_target() {
  const int from = ::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC);
  const int to = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  int error = from < 0 || to < 0 ? errno : 0;
  std::byte buffer[1 << 16];
  while (error == 0) {
    const ssize_t got = ::read(from, buffer, sizeof buffer);
    if (got == 0) break;
    if (got > 0) error = write_fully(to, {buffer, static_cast<size_t>(got)});
    else if (errno != EINTR) error = errno;
  }
  if (from >= 0) ::close(from);
  if (to >= 0) ::close(to);
  if (error != 0) fail("cannot be written", error);
}

void OutputFile::commit() {
  close();
  if (!replaces_) return copy_into_target();
  struct stat before {};
  if (::stat(path_.c_str(), &before) == 0) ::chmod(temporary_.c_str(), before.st_mode & 07777);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be replaced", errno);
  temporary_.clear();
}

}  // namespace qkv::io
