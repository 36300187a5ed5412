#include "qkv/png.h"

#include <png.h>

#include <utility>

#include <fmt/format.h>

#include "io/output_file.h"
#include "qkv/error.h"

namespace qkv::cli {

namespace {

void check(const Image& image) {
  const int64_t wanted = int64_t{3} * image.width * image.height;
  if (image.width >= 1 && image.height >= 1 && std::cmp_equal(image.rgb.size(), wanted)) return;
  throw ShapeError(fmt::format("expected an image of at least 1 x 1 with 3 bytes a pixel, got {} x {} with {} bytes",
                               image.width, image.height, image.rgb.size()));
}

}  // namespace

// libpng's simplified interface has no callbacks to jump out of, and a picture that was in memory once fits twice.
std::vector<std::byte> png_of(const Image& image) {
  check(image);
  png_image facts{};
  facts.version = PNG_IMAGE_VERSION;
  facts.width = static_cast<png_uint_32>(image.width);
  facts.height = static_cast<png_uint_32>(image.height);
  facts.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(facts);
  std::vector<std::byte> file(size);
  const bool done = png_image_write_to_memory(&facts, file.data(), &size, 0, image.rgb.data(), 0, nullptr) != 0;
  if (!done) {
    throw FileError(fmt::format("write_png: {} x {} pixels cannot be written: {}; make the picture smaller",
                                image.width, image.height, facts.message));
  }
  file.resize(size);
  return file;
}

void write_png(const std::string& path, const Image& image, const std::stop_token& stop) {
  const std::vector<std::byte> bytes = png_of(image);
  io::OutputFile file("write_png", path);
  file.write(bytes, stop);
  file.commit();
}

}  // namespace qkv::cli
