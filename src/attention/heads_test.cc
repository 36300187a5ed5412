#include "qkv/heads.h"

#include <gtest/gtest.h>

#include <cmath>

#include "qkv/error.h"
#include "tests/support/message.h"
#include "tests/support/tensor.h"

namespace qkv {
namespace {

using testing::message_of;
using testing::Placement;
using testing::Tensor;
using testing::tensor;

TEST(Heads, SplitIsAViewOfTheSameMemory) {
  // X of worked example W20: two tokens of width 4, two heads
  const Tensor x = tensor(DType::kFloat32, {1, 3, 4}, {1, 0, 2, 0, 0, 1, 0, 2, 1, 1, 1, 1});
  const View<const void> split = split_heads(x.view(), 2);
  EXPECT_EQ(shape_text(split), "{1, 2, 3, 2}");
  const auto heads = split.as<const float>();
  EXPECT_EQ(heads(0, 0, 0, 0), 1);
  EXPECT_EQ(heads(0, 0, 1, 1), 1);
  EXPECT_EQ(heads(0, 1, 0, 0), 2) << "the second half of token 0, not token 1";
  EXPECT_EQ(heads(0, 1, 1, 1), 2);
  EXPECT_EQ(split.data, x.view().data);
}

TEST(Heads, SplitKeepsTheTypeOfTheView) {
  float x[] = {1, 2, 3, 4, 5, 6};
  const View<float> split = split_heads(View<float>(x, {1, 3, 2}), 2);
  split(0, 1, 2, 0) = 7;
  EXPECT_EQ(x[5], 7);
}

TEST(Heads, MergeIsTheInverseOfSplitInEveryPlacement) {
  for (Placement placement : testing::kPlacements) {
    for (DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      Tensor x(type, {2, 5, 12}, placement), back(type, {2, 5, 12}, placement);
      x.normal(1);
      merge_heads(split_heads(View<const void>(x.view()), 3), back.view());
      x.each([&](auto... i) { ASSERT_EQ(back.get(i...), x.get(i...)) << name(placement) << " " << name(type); });
    }
  }
}

TEST(Heads, MergeTransposesAndDoesNotOnlyReshape) {
  const Tensor x = tensor(DType::kFloat32, {1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  Tensor y(DType::kFloat32, {1, 2, 4});
  merge_heads(x.view(), y.view());
  const double expected[] = {1, 2, 5, 6, 3, 4, 7, 8};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(y.get(0, i / 4, i % 4), expected[i]);
}

TEST(Heads, EmptyTensorsHaveHeadsToo) {
  const Tensor x(DType::kFloat32, {0, 3, 4});
  EXPECT_EQ(shape_text(split_heads(x.view(), 4)), "{0, 4, 3, 1}");
  Tensor y(DType::kFloat32, {0, 3, 4});
  merge_heads(split_heads(x.view(), 4), y.view());
}

TEST(HeadsErrors, NameExpectedAndGot) {
  const Tensor x(DType::kFloat32, {1, 3, 4}), heads(DType::kFloat32, {1, 2, 3, 2});
  Tensor wrong(DType::kFloat32, {1, 2, 6}), half(DType::kFloat16, {1, 3, 4});
  EXPECT_EQ(message_of<ShapeError>([&] { split_heads(x.view(), 3); }),
            "split_heads: x has shape {1, 3, 4} and 3 heads are wanted; its last axis must be a multiple of them");
  EXPECT_THROW(split_heads(x.view(), 0), ShapeError);
  EXPECT_EQ(message_of<ShapeError>([&] { split_heads(heads.view(), 2); }),
            "split_heads: x has shape {1, 2, 3, 2}, expected {batch, length, heads * size}");
  EXPECT_EQ(message_of<ShapeError>([&] { merge_heads(heads.view(), wrong.view()); }),
            "merge_heads: y has shape {1, 2, 6}, expected {1, 3, 4} for x of shape {1, 2, 3, 2}");
  EXPECT_EQ(message_of<DtypeError>([&] { merge_heads(heads.view(), half.view()); }),
            "merge_heads: x has type float32 but y has float16; they must agree");
}

TEST(AlibiSlopes, OfAPowerOfTwoAreAGeometricSeries) {
  EXPECT_EQ(alibi_slopes(1), (std::vector<float>{0x1p-8f}));
  EXPECT_EQ(alibi_slopes(2), (std::vector<float>{0x1p-4f, 0x1p-8f}));
  EXPECT_EQ(alibi_slopes(8),
            (std::vector<float>{0x1p-1f, 0x1p-2f, 0x1p-3f, 0x1p-4f, 0x1p-5f, 0x1p-6f, 0x1p-7f, 0x1p-8f}));
}

TEST(AlibiSlopes, OfOtherNumbersTakeEveryOtherSlopeOfTheNextPower) {
  EXPECT_EQ(alibi_slopes(3), (std::vector<float>{0x1p-4f, 0x1p-8f, 0x1p-2f}));
  EXPECT_EQ(alibi_slopes(6), (std::vector<float>{0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f}));
  const auto twelve = alibi_slopes(12);
  ASSERT_EQ(twelve.size(), 12u);
  EXPECT_FLOAT_EQ(twelve[8], float(std::sqrt(0.5)));
  EXPECT_FLOAT_EQ(twelve[11], float(std::sqrt(0.5) / 8));
}

TEST(AlibiSlopes, RefuseLessThanOneHead) {
  EXPECT_EQ(message_of<OptionError>([] { alibi_slopes(0); }), "alibi_slopes: heads is 0; expected 1 or more");
}

}  // namespace
}  // namespace qkv
