// Pictures as files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

namespace qkv::cli {

struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  ///< {height, width, 3}: rows from the top, red green blue
};

/// A whole .png of 8-bit sRGB; equal images give equal bytes. Throws ShapeError where the image is empty or has not as many
/// bytes as it says, FileError where it is too large.
std::vector<std::byte> png_of(const Image&);
/// The same in a file that appears complete or not at all. Throws FileError where it cannot be written, Cancelled.
void write_png(const std::string& path, const Image&, const std::stop_token& stop = {});

}  // namespace qkv::cli
