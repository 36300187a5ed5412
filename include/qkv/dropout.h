// Which weights dropout keeps: a function of the seed and of where the pair stands, so that it can be drawn again anywhere.
#pragma once
#include <array>
#include <cstdint>

#include "qkv/pass.h"

namespace qkv {

/// Philox4x32: 128 random bits for a counter under a key, whose lower half is its first word. Salmon, Moraes, Dror, Shaw 2011,
/// "Parallel random numbers: as easy as 1, 2, 3", who found 7 rounds to be the fewest that pass every test of BigCrush.
constexpr int kPhiloxRounds = 7;
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, uint64_t key, int rounds = kPhiloxRounds) {
  auto k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < rounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ k1, uint32_t(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

/// A weight is dropped where its 32 random bits, as a number, lie below this: p in [0, 1] rounded to 2^-32.
constexpr uint64_t dropout_threshold(double p) { return uint64_t(p * 0x1p32 + 0.5); }

/// Whether dropout keeps the weight of a pair. Batch entry and head by their indices, query and key by their positions.
/// Eight keys share a draw, of which each takes 16 bits; the lower 16 bits come from another, which is rarely looked at.
constexpr bool dropout_keeps(uint64_t seed, uint64_t threshold, Site at) {
  const auto bits = [&](uint32_t draw) {
    const auto four =
        philox({uint32_t(at.key) / 8, uint32_t(at.query), uint32_t(at.head), uint32_t(at.batch) | draw}, seed);
    return four[uint32_t(at.key) % 8 / 2] >> (uint32_t(at.key) % 2 * 16) & 0xFFFF;
  };
  const uint64_t high = bits(0);
  if (high != threshold >> 16) return high > threshold >> 16;
  return bits(uint32_t{1} << 31) >= (threshold & 0xFFFF);
}

}  // namespace qkv
