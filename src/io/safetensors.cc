#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <new>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/bytes.h"
#include "io/safetensors_header.h"
#include "qkv/error.h"
#include "qkv/io.h"

namespace qkv {

namespace {

constexpr uint64_t kMostHeader = 100'000'000;  // the format's own limit
constexpr uint64_t kLengthBytes = 8;

/// A regular file, open for reading at any place.
class RandomFile {
 public:
  explicit RandomFile(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw FileError(fmt::format("Safetensors: cannot open {}: {}", path_, std::strerror(errno)));
    struct stat facts {};
    if (::fstat(descriptor_, &facts) == 0 && S_ISREG(facts.st_mode)) {
      size_ = static_cast<uint64_t>(facts.st_size);
      return;
    }
    ::close(descriptor_);
    throw FileError(fmt::format("Safetensors: {} is no regular file; copy it to one first", path_));
  }
  ~RandomFile() { ::close(descriptor_); }
  RandomFile(const RandomFile&) = delete;
  RandomFile& operator=(const RandomFile&) = delete;

  uint64_t size() const { return size_; }
  int descriptor() const { return descriptor_; }

  void read(void* to, uint64_t bytes, uint64_t at) const {
    constexpr uint64_t kMost = uint64_t{1} << 30;
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t got = ::pread(descriptor_, static_cast<char*>(to) + done, std::min(bytes - done, kMost),
                                  static_cast<off_t>(at + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw FileError(fmt::format("Safetensors: cannot read {}: {}", path_, std::strerror(errno)));
      if (got == 0)
        throw FileError(
            fmt::format("Safetensors: {} became shorter while it was read; wait until it is complete", path_));
      done += static_cast<uint64_t>(got);
    }
  }

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

/// The whole file in memory, page by page as it is touched.
class Mapping {
 public:
  Mapping(const RandomFile& file, const std::string& path) : size_(file.size()) {
    void* at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (at == MAP_FAILED)
      throw FileError(fmt::format("Safetensors: {} cannot be mapped: {}", path, std::strerror(errno)));
    at_ = static_cast<const std::byte*>(at);
  }
  ~Mapping() { ::munmap(const_cast<std::byte*>(at_), size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  const std::byte* at(uint64_t offset) const { return at_ + offset; }

 private:
  const std::byte* at_ = nullptr;
  size_t size_;
};

uint64_t little_endian(const unsigned char* bytes) {
  uint64_t value = 0;
  for (int n = 8; n-- > 0;) value = value << 8 | bytes[n];
  return value;
}

uint64_t header_length(const RandomFile& file, const std::string& path) {
  if (file.size() < kLengthBytes) {
    throw FileError(fmt::format(
        "Safetensors: {} has {} bytes, too few for the length of a header; it is empty or cut short, fetch it again",
        path, file.size()));
  }
  unsigned char bytes[kLengthBytes];
  file.read(bytes, kLengthBytes, 0);
  const uint64_t length = little_endian(bytes);
  if (length <= std::min(file.size() - kLengthBytes, kMostHeader)) return length;
  throw FileError(fmt::format(
      "Safetensors: {} claims a header of {} bytes, expected at most the {} that follow and 100 MB; it is no safetensors file, "
      "cut short or damaged",
      path, length, file.size() - kLengthBytes));
}

}  // namespace

struct Safetensors::Impl {
  std::string path;
  RandomFile file;
  uint64_t data_begin = 0;
  std::vector<io::SafetensorsEntry> entries;
  std::map<std::string, std::string, std::less<>> metadata;
  std::vector<std::string> names;
  std::map<std::string, size_t, std::less<>> index;
  std::unique_ptr<Mapping> mapping;  // made by the first view

  explicit Impl(const std::string& name) : path(name), file(name) {
    const uint64_t length = header_length(file, path);
    std::string text(length, '\0');
    file.read(text.data(), length, kLengthBytes);
    data_begin = kLengthBytes + length;
    auto header = io::parse_safetensors_header(text, file.size() - data_begin, path);
    entries = std::move(header.entries), metadata = std::move(header.metadata);
    for (const io::SafetensorsEntry& e : entries) {
      index.emplace(e.name, names.size());
      names.push_back(e.name);
    }
  }

  const io::SafetensorsEntry& entry(std::string_view name) const {
    const auto at = index.find(name);
    if (at == index.end()) {
      const size_t shown = std::min<size_t>(names.size(), 12);
      throw FileError(fmt::format("Safetensors: {} has no tensor '{}'; it has: {}{}", path, name,
                                  fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", "),
                                  shown < names.size() ? ", ..." : ""));
    }
    const io::SafetensorsEntry& e = entries[at->second];
    if (e.dtype) return e;
    throw FileError(
        fmt::format("Safetensors: {} in {} has elements of type {}, which attention does not compute with here; "
                    "save it as F32 or BF16",
                    e.name, path, e.type));
  }

  Array read(std::string_view name) const {
    const io::SafetensorsEntry& e = entry(name);
    const auto bytes = static_cast<size_t>(e.end - e.begin);
    Array::Memory memory;
    try {
      memory = io::allocate(bytes);
    } catch (const std::bad_alloc&) {
      throw FileError(
          fmt::format("Safetensors: no memory for the {} bytes of {} in {}; split the tensor", bytes, e.name, path));
    }
    file.read(memory.get(), bytes, data_begin + e.begin);
    if constexpr (std::endian::native == std::endian::big) io::swap_elements(memory.get(), bytes, size_of(*e.dtype));
    if (*e.dtype == DType::kBool) io::make_bools(memory.get(), bytes);
    return Array::adopt(*e.dtype, e.shape, false, std::move(memory), bytes);
  }

  View<const void> view(std::string_view name) {
    const io::SafetensorsEntry& e = entry(name);
    if (std::endian::native != std::endian::little || *e.dtype == DType::kBool) return {};
    if ((data_begin + e.begin) % size_of(*e.dtype) != 0) return {};
    if (e.shape.size() > size_t{kMaxRank}) {
      throw ShapeError(
          fmt::format("Safetensors::view: a view has at most {} axes, {} has {}: {{{}}}; reshape it before saving",
                      kMaxRank, e.name, e.shape.size(), fmt::join(e.shape, ", ")));
    }
    if (!mapping) mapping = std::make_unique<Mapping>(file, path);
    static constexpr int64_t kScalar[] = {1};
    const auto shape = e.shape.empty() ? std::span<const int64_t>(kScalar) : std::span<const int64_t>(e.shape);
    return {mapping->at(data_begin + e.begin), *e.dtype, Layout(shape)};
  }
};

Safetensors::Safetensors(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
Safetensors::~Safetensors() = default;
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;

const std::vector<std::string>& Safetensors::names() const { return impl_->names; }
const std::map<std::string, std::string, std::less<>>& Safetensors::metadata() const { return impl_->metadata; }
bool Safetensors::contains(std::string_view name) const { return impl_->index.contains(name); }
Array Safetensors::read(std::string_view name) const { return impl_->read(name); }
View<const void> Safetensors::view(std::string_view name) const { return impl_->view(name); }

}  // namespace qkv
