// Matrices of bits.
#pragma once
#include <cstdint>

namespace qkv {

/// Bit r of word j becomes bit j of word r, for 64 x 64 bits in place. Warren 2012, Hacker's Delight, 7-3.
inline void transpose_bits(uint64_t* words) {
  constexpr int kWords = 64;
  uint64_t mask = 0x00000000FFFFFFFF;
  for (int width = 32; width != 0; width >>= 1, mask ^= mask << width) {
    for (int k = 0; k < kWords; k = ((k | width) + 1) & ~width) {
      const uint64_t swapped = (words[k] >> width ^ words[k | width]) & mask;
      words[k] ^= swapped << width;
      words[k | width] ^= swapped;
    }
  }
}

/// The lowest n bits, n from 0 to 64.
constexpr uint64_t low_bits(int n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

}  // namespace qkv
