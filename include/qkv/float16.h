// The two 16-bit storage types. Arithmetic happens in float.
#pragma once
#include <bit>
#include <cstdint>

namespace qkv {

namespace detail {

/// IEEE 754 binary16 to binary32; exact, keeps infinities and NaN payloads.
constexpr float float_of_half(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  uint32_t magnitude = h & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = float(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

/// binary32 to binary16, to nearest, ties to even; NaN stays NaN.
constexpr uint16_t half_of_float(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return uint16_t(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000u) return uint16_t(sign | 0x7C00u);   // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                                   // below 2^-14: a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;  // its last mantissa bit weighs 2^-24
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1u;
  return uint16_t(sign | ((magnitude - (112u << 23) + 0xFFFu + odd) >> 13));
}

/// binary32 to its upper half, to nearest, ties to even; NaN stays NaN.
constexpr uint16_t bfloat_of_float(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return uint16_t(bits >> 16 | 0x40u);
  return uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace detail

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits.
struct float16 {
  uint16_t bits = 0;

  float16() = default;
  constexpr explicit float16(float f) : bits(detail::half_of_float(f)) {}
  constexpr operator float() const { return detail::float_of_half(bits); }
  static constexpr float16 from_bits(uint16_t b) {
    float16 h;
    h.bits = b;
    return h;
  }
};

/// The upper 16 bits of a float: 1 sign, 8 exponent, 7 mantissa bits.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  constexpr explicit bfloat16(float f) : bits(detail::bfloat_of_float(f)) {}
  constexpr operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static constexpr bfloat16 from_bits(uint16_t b) {
    bfloat16 h;
    h.bits = b;
    return h;
  }
};

}  // namespace qkv
