#include "io/npy.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/npy_header.h"
#include "io/output_file.h"
#include "qkv/error.h"

namespace qkv::io {

namespace {

constexpr size_t kMostHeader = size_t{1} << 20;

uint32_t little_endian(const unsigned char* bytes, int count) {
  uint32_t value = 0;
  for (int n = count; n-- > 0;) value = value << 8 | bytes[n];
  return value;
}

std::string read_header(Source& source, const std::string& file) {
  unsigned char start[12] = {};
  if (read_fully(source, start, 8) != 8 || std::memcmp(start, "\x93NUMPY", 6) != 0) {
    throw FileError(fmt::format(
        "read_npy: {} is not an .npy file: it does not begin with \\x93NUMPY; write it with np.save", file));
  }
  const int major = start[6];
  if (major < 1 || major > 3 || start[7] != 0) {
    throw FileError(
        fmt::format("read_npy: {} has version {}.{} of the format, expected 1.0, 2.0 or 3.0", file, major, start[7]));
  }
  const int width = major == 1 ? 2 : 4;
  const size_t got = read_fully(source, start + 8, static_cast<size_t>(width));
  const size_t length = little_endian(start + 8, width);
  const auto left = source.left();
  if (got != static_cast<size_t>(width) || length > kMostHeader || (left && length > *left)) {
    throw FileError(fmt::format(
        "read_npy: {} claims a header of {} bytes, expected at most what the file has and 1 MiB; the file is cut short "
        "or damaged, fetch it again",
        file, length));
  }
  std::string text(length, '\0');
  if (read_fully(source, text.data(), length) != length) {
    throw FileError(fmt::format("read_npy: {} ends inside its header; the file is cut short, fetch it again", file));
  }
  return text;
}

void widen(View<const bfloat16> from, std::byte* to) {
  float* out = reinterpret_cast<float*>(to);
  for (int64_t a = 0; a < from.shape[0]; ++a) {
    for (int64_t b = 0; b < from.shape[1]; ++b) {
      for (int64_t c = 0; c < from.shape[2]; ++c) {
        for (int64_t d = 0; d < from.shape[3]; ++d) *out++ = from(a, b, c, d);
      }
    }
  }
}

std::string shape_tuple(const Layout& layout) {
  std::string text = "(";
  for (int axis = 0; axis < layout.rank; ++axis) text += fmt::format("{}{}", axis == 0 ? "" : ", ", layout.shape[axis]);
  return text + (layout.rank == 1 ? ",)" : ")");
}

}  // namespace

Array parse_npy(Source& source, const std::string& file, uint64_t limit) {
  NpyHeader header = parse_npy_header(read_header(source, file), file);
  const auto bytes = checked_bytes(header.shape, size_of(header.dtype));
  if (!bytes || *bytes > limit) {
    throw FileError(fmt::format(
        "read_npy: {} claims the shape ({}) of {}, more than the {} bytes that are allowed; the header is damaged, or the "
        "array is to be split",
        file, fmt::join(header.shape, ", "), name(header.dtype), limit));
  }
  std::optional<Array::Memory> memory;
  try {
    memory = read_array_bytes(source, *bytes);
  } catch (const std::bad_alloc&) {
    throw FileError(fmt::format("read_npy: no memory for the {} bytes of {}; split the array", *bytes, file));
  }
  if (!memory) {
    throw FileError(fmt::format(
        "read_npy: {} ends before the {} bytes of data that its header claims (shape ({}) of {}); the file is cut short, "
        "fetch it again",
        file, *bytes, fmt::join(header.shape, ", "), name(header.dtype)));
  }
  std::byte beyond;
  if (source.read(&beyond, 1) != 0) {
    throw FileError(fmt::format(
        "read_npy: {} goes on after the {} bytes of data that its header claims; it is damaged, or several arrays were "
        "saved into one .npy (use np.savez)",
        file, *bytes));
  }
  const auto size = static_cast<size_t>(*bytes);
  if (header.swapped) swap_elements(memory->get(), size, size_of(header.dtype));
  if (header.dtype == DType::kBool) make_bools(memory->get(), size);
  return Array::adopt(header.dtype, std::move(header.shape), header.fortran, std::move(*memory), size);
}

NpyImage npy_image(View<const void> tensor) {
  const bool widens = tensor.dtype == DType::kBFloat16;
  NpyImage image{npy_preamble(widens ? DType::kFloat32 : tensor.dtype, shape_tuple(tensor)), {}};
  if (!widens) {
    image.elements = in_c_order(tensor);
  } else if (tensor.size() > 0) {
    const size_t bytes = static_cast<size_t>(tensor.size()) * sizeof(float);
    image.elements.packed = allocate(bytes);
    widen(tensor.as<const bfloat16>(), image.elements.packed.get());
    image.elements.data = {image.elements.packed.get(), bytes};
  }
  return image;
}

}  // namespace qkv::io

namespace qkv {

Array read_npy(const std::string& path) {
  io::FileSource source(path);
  return io::parse_npy(source, path, std::numeric_limits<int64_t>::max());
}

void write_npy(const std::string& path, View<const void> tensor, std::stop_token stop) {
  if (!tensor)
    throw ArgumentError(fmt::format("write_npy: tensor is absent (rank 0); nothing was written to {}", path));
  const io::NpyImage image = io::npy_image(tensor);
  io::OutputFile file("write_npy", path);
  file.write(std::as_bytes(std::span(image.preamble)));
  file.write(image.elements.data, stop);
  file.commit();
}

}  // namespace qkv
