#include "qkv/bar.h"

#include <algorithm>
#include <cmath>

namespace qkv::cli {

std::string bar(double share, int width, const Screen& screen) {
  if (!(share > 0)) return "";
  const double columns = std::min(share, 1.0) * width;
  if (!screen.unicode) return std::string(static_cast<size_t>(std::max(1L, std::lround(columns))), '#');
  constexpr const char* kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const long eighths = std::max(1L, std::lround(columns * 8));
  std::string text;
  for (long n = 0; n < eighths / 8; ++n) text += "█";
  return text + kParts[eighths % 8];
}

}  // namespace qkv::cli
