#include "qkv/view.h"

#include <gtest/gtest.h>

#include "core/format.h"
#include "qkv/error.h"
#include "tests/support/message.h"

namespace qkv {
namespace {

using testing::message_of;

TEST(DType, EveryTypeHasTheNameAndTheSizeOfItsElement) {
  EXPECT_STREQ(name(kDType<float>), "float32");
  EXPECT_STREQ(name(kDType<double>), "float64");
  EXPECT_STREQ(name(kDType<float16>), "float16");
  EXPECT_STREQ(name(kDType<bfloat16>), "bfloat16");
  EXPECT_STREQ(name(kDType<bool>), "bool");
  EXPECT_STREQ(name(kDType<int8_t>), "int8");
  EXPECT_STREQ(name(kDType<uint64_t>), "uint64");
  const auto same_size = []<class... T>(T...) { return ((size_of(kDType<T>) == sizeof(T)) && ...); };
  EXPECT_TRUE(same_size(0.f, 0.0, float16{}, bfloat16{}, false, int8_t{}, int16_t{}, int32_t{}, int64_t{}, uint8_t{},
                        uint16_t{}, uint32_t{}, uint64_t{}));
}

TEST(DType, OnlyTheFourFloatingTypesAreForAttention) {
  int floating = 0;
  for (int t = 0; t <= int(DType::kUInt64); ++t) floating += is_floating(DType(t));
  EXPECT_EQ(floating, 4);
  EXPECT_TRUE(is_floating(DType::kBFloat16));
  EXPECT_FALSE(is_floating(DType::kInt32));
}

TEST(View, IsContiguousWithTheLastAxisFastestUnlessStridesAreGiven) {
  float data[24] = {};
  const View<float> v(data, {2, 3, 4});
  EXPECT_EQ(v.rank, 3);
  EXPECT_EQ(v.size(), 24);
  EXPECT_EQ(&v(1, 2, 3), data + 23);
  const View<float> turned(data, {4, 3}, {1, 4});
  EXPECT_EQ(&turned(3, 1), data + 7);
}

TEST(View, OffsetsHave64Bits) {
  const Layout big(std::array<int64_t, 4>{1, 24, 240001, 128}, std::array<int64_t, 4>{276480000, 128, 9216, 1});
  EXPECT_EQ(big.offset(0, 23, 240000, 127), 2211843071);
}

TEST(View, AnAxisOfSizeOneStandsForAnyIndex) {
  const Layout mask(std::array<int64_t, 4>{1, 2, 1, 5});
  EXPECT_EQ(mask.broadcast_offset(7, 1, 9, 3), 8);
}

TEST(View, KnowsItsElementTypeWhenErased) {
  double data[6] = {};
  const View<const void> v = View<double>(data, {2, 3});
  EXPECT_EQ(v.dtype, DType::kFloat64);
  EXPECT_EQ(&v.as<const double>()(1, 2), data + 5);
  EXPECT_FALSE(View<const void>{});
}

TEST(View, PrintsItsShape) {
  EXPECT_EQ(shape_text(Layout(std::array<int64_t, 4>{2, 8, 128, 64})), "{2, 8, 128, 64}");
  EXPECT_EQ(shape_text(Layout{}), "{}");
  float one = 0;
  EXPECT_EQ(fmt::format("{} of {}", View<float>(&one, {1, 0}), DType::kFloat32), "{1, 0} of float32");
}

TEST(View, RefusesMoreThanFourAxesAndSaysHowMany) {
  EXPECT_EQ(message_of<ShapeError>([] {
              Layout(std::array<int64_t, 5>{1, 2, 3, 4, 5});
            }),
            "View: the shape has 5 sizes, but a tensor here has at most 4; merge axes or drop those of size 1");
}

TEST(View, RefusesStridesThatAreNotOnePerAxis) {
  float data[6] = {};
  EXPECT_EQ(message_of<ShapeError>([&] {
              View<float>(data, {2, 3}, {3});
            }),
            "View: the shape has 2 sizes, but there are 1 strides; give one stride for every axis");
}

TEST(Errors, CarryTheirTextAndTheirType) {
  EXPECT_THROW(option_error("f: {}", 1), OptionError);
  EXPECT_THROW(dtype_error("f: {}", 1), DtypeError);
  EXPECT_EQ(message_of<ShapeError>([] { shape_error("f: x is {}, not {}", 3, "4"); }), "f: x is 3, not 4");
}

}  // namespace
}  // namespace qkv
