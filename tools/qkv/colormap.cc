#include "qkv/colormap.h"

#include <algorithm>
#include <cmath>

namespace qkv::cli {

Rgb viridis(double t) {
  constexpr int kSteps = 15;
  constexpr Rgb kTable[kSteps + 1] = {// the map at 0, 1/15, ... 1
                                      {0x44, 0x01, 0x54}, {0x48, 0x1A, 0x6C}, {0x47, 0x2F, 0x7D}, {0x41, 0x44, 0x87},
                                      {0x39, 0x56, 0x8C}, {0x31, 0x68, 0x8E}, {0x2A, 0x78, 0x8E}, {0x23, 0x88, 0x8E},
                                      {0x1F, 0x98, 0x8B}, {0x22, 0xA8, 0x84}, {0x35, 0xB7, 0x79}, {0x54, 0xC5, 0x68},
                                      {0x7A, 0xD1, 0x51}, {0xA5, 0xDB, 0x36}, {0xD2, 0xE2, 0x1B}, {0xFD, 0xE7, 0x25}};
  const double place = std::clamp(t, 0.0, 1.0) * kSteps;
  const int first = std::min(static_cast<int>(place), kSteps - 1);
  const double part = place - first;
  const auto mix = [&](uint8_t a, uint8_t b) { return static_cast<uint8_t>(std::lround(a + (b - a) * part)); };
  const Rgb a = kTable[first], b = kTable[first + 1];
  return {mix(a.r, b.r), mix(a.g, b.g), mix(a.b, b.b)};
}

Rgb readable_on(Rgb c) {
  const auto linear = [](uint8_t v) { return std::pow(v / 255.0, 2.2); };
  const double luminance = 0.2126 * linear(c.r) + 0.7152 * linear(c.g) + 0.0722 * linear(c.b);
  return luminance > 0.179 ? Rgb{0, 0, 0} : Rgb{255, 255, 255};  // where the contrasts of WCAG 2 are equal
}

}  // namespace qkv::cli
