#include "qkv/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace qkv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What the bits mean, straight from the definition of such a format, in double. Infinity and NaN apart.
double value_of(uint16_t bits, int mantissa_bits, int bias) {
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

/// Every finite neighbour pair of the format, of both signs: the middle goes to the even one, what lies beside it to the
/// nearer. The last pair is the largest finite number and infinity.
template <class Half> void check_rounding_boundaries(uint16_t infinity, int mantissa_bits, int bias) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t bits = 0; bits < infinity; ++bits) {
      const auto low = uint16_t(sign | bits), high = uint16_t(sign | (bits + 1));
      const auto middle = float((value_of(low, mantissa_bits, bias) + value_of(high, mantissa_bits, bias)) / 2);
      ASSERT_EQ(Half(middle).bits, bits % 2 ? high : low) << "bits " << low;
      ASSERT_EQ(Half(std::nextafter(middle, sign ? kInfinity : -kInfinity)).bits, low) << "bits " << low;
      ASSERT_EQ(Half(std::nextafter(middle, sign ? -kInfinity : kInfinity)).bits, high) << "bits " << low;
    }
  }
}

TEST(Float16, All65536ValuesWidenExactlyAndComeBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = float16::from_bits(uint16_t(bits));
    const float wide = half;
    if ((bits & 0x7C00) != 0x7C00) {
      ASSERT_TRUE(same_bits(wide, float(value_of(half.bits, 10, 15)))) << bits;
      ASSERT_EQ(float16(wide).bits, bits);
    } else if ((bits & 0x3FF) == 0) {
      ASSERT_EQ(wide, bits & 0x8000 ? -kInfinity : kInfinity);
      ASSERT_EQ(float16(wide).bits, bits);
    } else {
      ASSERT_TRUE(std::isnan(wide));
      ASSERT_EQ(float16(wide).bits, bits | 0x200) << "NaN stays NaN, quiet, with its payload";
    }
  }
}

TEST(BFloat16, All65536ValuesWidenExactlyAndComeBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = bfloat16::from_bits(uint16_t(bits));
    const float wide = half;
    if ((bits & 0x7F80) != 0x7F80) {
      ASSERT_TRUE(same_bits(wide, float(value_of(half.bits, 7, 127)))) << bits;
      ASSERT_EQ(bfloat16(wide).bits, bits);
    } else if ((bits & 0x7F) == 0) {
      ASSERT_EQ(wide, bits & 0x8000 ? -kInfinity : kInfinity);
      ASSERT_EQ(bfloat16(wide).bits, bits);
    } else {
      ASSERT_TRUE(std::isnan(wide));
      ASSERT_EQ(bfloat16(wide).bits, bits | 0x40) << "NaN stays NaN, quiet, with its payload";
    }
  }
}

TEST(Float16, RoundsToNearestEvenAtEveryBoundary) { check_rounding_boundaries<float16>(0x7C00, 10, 15); }

TEST(BFloat16, RoundsToNearestEvenAtEveryBoundary) { check_rounding_boundaries<bfloat16>(0x7F80, 7, 127); }

TEST(Float16, HandComputedValues) {
  EXPECT_EQ(float16(1.f).bits, 0x3C00);
  EXPECT_EQ(float16(-2.f).bits, 0xC000);
  EXPECT_EQ(float16(65504.f).bits, 0x7BFF);
  EXPECT_EQ(float16(65519.996f).bits, 0x7BFF);
  EXPECT_EQ(float16(65520.f).bits, 0x7C00);
  EXPECT_EQ(float16(-1e9f).bits, 0xFC00);
  EXPECT_EQ(float16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(float16(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(float16(-0.f).bits, 0x8000);
}

TEST(BFloat16, HandComputedValues) {
  EXPECT_EQ(bfloat16(1.f).bits, 0x3F80);
  EXPECT_EQ(bfloat16(3.14159274f).bits, 0x4049);
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(bfloat16(1.00390625f).bits, 0x3F80) << "halfway, to even";
  EXPECT_EQ(bfloat16(1.01171875f).bits, 0x3F82) << "halfway, to even";
}

TEST(Float16, ConvertsAtCompileTime) {
  static_assert(float16(0.5f).bits == 0x3800 && float(float16::from_bits(0x3800)) == 0.5f);
  static_assert(bfloat16(0.5f).bits == 0x3F00 && float(bfloat16::from_bits(0x3F00)) == 0.5f);
}

}  // namespace
}  // namespace qkv
