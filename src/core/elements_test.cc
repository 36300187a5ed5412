#include "core/elements.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace qkv {
namespace {

TEST(Elements, ADoubleIsRoundedOnceToSixteenBits) {
  const double just_above_half = 1 + 0x1p-11 + 0x1p-40;  // in two steps it would fall to 1
  EXPECT_EQ(rounded<float16>(just_above_half).bits, 0x3C01);
  EXPECT_EQ(rounded<float16>(1 + 0x1p-11).bits, 0x3C00) << "halfway, to even";
  EXPECT_EQ(rounded<float16>(1 + 3 * 0x1p-11 - 0x1p-40).bits, 0x3C01) << "in two steps it would rise to 0x3C02";
  EXPECT_EQ(rounded<bfloat16>(-1 - 0x1p-8 - 0x1p-45).bits, 0xBF81);
  EXPECT_EQ(rounded<float16>(1e300).bits, 0x7C00);
  EXPECT_EQ(rounded<float16>(-INFINITY).bits, 0xFC00);
  EXPECT_TRUE(std::isnan(float(rounded<bfloat16>(double(NAN)))));
}

TEST(Elements, AreReadAndWrittenWithStridesInEveryType) {
  const auto round_trip = []<class E>(E) {
    std::array<E, 7> memory{};
    const View<E> v(memory.data(), {7});
    const double in[3] = {1.5, -2, 0.25};
    store(View<void>(v), 6, -3, 3, in);
    float out[3] = {};
    load(View<const void>(View<void>(v)), 6, -3, 3, out);
    EXPECT_EQ(float(memory[6]), 1.5f);
    EXPECT_EQ(float(memory[3]), -2.f);
    EXPECT_EQ(float(memory[0]), 0.25f);
    EXPECT_EQ(out[0], 1.5f);
    EXPECT_EQ(out[2], 0.25f);
  };
  round_trip(float{});
  round_trip(double{});
  round_trip(float16{});
  round_trip(bfloat16{});
}

}  // namespace
}  // namespace qkv
