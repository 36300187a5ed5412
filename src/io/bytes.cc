#include "io/bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::io {

namespace {

constexpr uint64_t kAlwaysThere = uint64_t{64} << 20;  // of less nobody asks the system

void expect_memory(uint64_t bytes) {
  if (bytes > kAlwaysThere && bytes > available_memory()) throw std::bad_alloc();
}

}  // namespace

uint64_t available_memory() {
  std::ifstream facts("/proc/meminfo");
  for (std::string name, rest; facts >> name;) {
    uint64_t kibibytes = 0;
    if (name == "MemAvailable:" && facts >> kibibytes) return kibibytes << 10;
    std::getline(facts, rest);
  }
  return std::numeric_limits<uint64_t>::max();
}

Array::Memory allocate(size_t bytes) {
  expect_memory(bytes);
  const size_t rounded = bytes > 0 ? bytes : 1;
  return Array::Memory(static_cast<std::byte*>(::operator new[](rounded, std::align_val_t{kAlignment})));
}

std::optional<uint64_t> checked_bytes(std::span<const int64_t> shape, size_t element) {
  int64_t bytes = static_cast<int64_t>(element);
  bool empty = false;
  for (int64_t n : shape) {
    if (n < 0) return std::nullopt;
    if (n == 0) empty = true;
    else if (__builtin_mul_overflow(bytes, n, &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

void swap_elements(std::byte* data, size_t bytes, size_t element) {
  for (std::byte* at = data; at != data + bytes; at += element) std::reverse(at, at + element);
}

void make_bools(std::byte* data, size_t bytes) {
  std::transform(data, data + bytes, data, [](std::byte b) { return b == std::byte{0} ? b : std::byte{1}; });
}

FileSource::FileSource(std::string path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw FileError(fmt::format("read_npy: cannot open {}: {}", path_, std::strerror(errno)));
  struct stat facts {};
  if (::fstat(descriptor_, &facts) != 0) return;
  if (S_ISDIR(facts.st_mode)) {
    ::close(descriptor_);
    throw FileError(fmt::format("read_npy: {} is a folder, expected a file", path_));
  }
  if (S_ISREG(facts.st_mode)) left_ = static_cast<uint64_t>(facts.st_size);
}

FileSource::~FileSource() { ::close(descriptor_); }

size_t FileSource::read(void* to, size_t bytes) {
  constexpr size_t kMost = size_t{1} << 30;  // one read(2) is limited to 2 GiB on Linux
  ssize_t got;
  do got = ::read(descriptor_, to, std::min(bytes, kMost));
  while (got < 0 && errno == EINTR);
  if (got < 0) throw FileError(fmt::format("read_npy: cannot read {}: {}", path_, std::strerror(errno)));
  if (left_) *left_ -= std::min(*left_, static_cast<uint64_t>(got));
  return static_cast<size_t>(got);
}

size_t MemorySource::read(void* to, size_t bytes) {
  const size_t n = std::min(bytes, bytes_.size());
  if (n > 0) std::memcpy(to, bytes_.data(), n);
  bytes_ = bytes_.subspan(n);
  return n;
}

size_t read_fully(Source& source, void* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const size_t got = source.read(static_cast<std::byte*>(to) + done, bytes - done);
    if (got == 0) break;
    done += got;
  }
  return done;
}

std::optional<Array::Memory> read_array_bytes(Source& source, uint64_t bytes) {
  const auto left = source.left();
  if (left && *left < bytes) return std::nullopt;
  expect_memory(bytes);
  constexpr size_t kFirst = size_t{1} << 20;
  const auto wanted = static_cast<size_t>(bytes);
  size_t capacity = source.backed() ? wanted : std::min(wanted, kFirst);
  Array::Memory memory = allocate(capacity);
  size_t done = 0;
  for (;;) {
    done += read_fully(source, memory.get() + done, capacity - done);
    if (done < capacity) return std::nullopt;
    if (done == wanted) return memory;
    capacity = capacity > wanted / 2 ? wanted : 2 * capacity;
    Array::Memory larger = allocate(capacity);
    std::memcpy(larger.get(), memory.get(), done);
    memory = std::move(larger);
  }
}

}  // namespace qkv::io
