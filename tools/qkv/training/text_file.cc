#include "qkv/training/text_file.h"

#include <array>

#include "io/bytes.h"

namespace qkv::cli {

std::string read_text(const std::string& path) {
  io::FileSource source(path);
  std::string text;
  std::array<char, 1 << 16> part;
  while (const size_t n = source.read(part.data(), part.size())) text.append(part.data(), n);
  return text;
}

}  // namespace qkv::cli
