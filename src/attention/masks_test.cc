#include "qkv/masks.h"

#include <gtest/gtest.h>

#include <limits>

#include "qkv/error.h"
#include "tests/support/message.h"
#include "tests/support/tensor.h"

namespace qkv {
namespace {

using testing::message_of;
using testing::Placement;
using testing::Tensor;
using testing::tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor bools(std::vector<int64_t> shape, const std::vector<double>& numbers) {
  return tensor(DType::kBool, std::move(shape), numbers);
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  t.each([&](auto... i) { values.push_back(t.get(i...)); });
  return values;
}

TEST(Masks, KeepIsTheOppositeOfIgnore) {
  Tensor keep(DType::kBool, {2, 2}, Placement::kTransposed);
  keep_from_ignore(bools({2, 2}, {0, 1, 0, 0}).as<const bool>(), keep.as<bool>());
  EXPECT_EQ(values_of(keep), (std::vector<double>{1, 0, 1, 1}));
}

TEST(Masks, AnyByteButZeroMeansTrue) {
  Tensor keep(DType::kBool, {3});
  keep_from_ignore(bools({3}, {0, 1, 255}).as<const bool>(), keep.as<bool>());
  EXPECT_EQ(values_of(keep), (std::vector<double>{1, 0, 0}));
}

TEST(Masks, AnAdditiveMaskIsZeroOrMinusInfinityInEveryType) {
  for (DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    Tensor additive(type, {3}, Placement::kReversed);
    additive_from_keep(bools({3}, {1, 0, 1}).as<const bool>(), additive.view());
    EXPECT_EQ(values_of(additive), (std::vector<double>{0, -kInfinity, 0})) << name(type);
  }
}

TEST(Masks, PaddingHidesColumnsNeverRows) {
  Tensor keep(DType::kBool, {2, 1, 2, 2});
  merge_ignore_masks({}, bools({2, 2}, {0, 0, 0, 1}).as<const bool>(), keep.as<bool>());
  EXPECT_EQ(values_of(keep), (std::vector<double>{1, 1, 1, 1, 1, 0, 1, 0}));
}

TEST(Masks, MergedHeadsAreNumberedBatchFirst) {
  // index n * heads + h: 0: hides (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)
  const Tensor attention = bools({4, 1, 2}, {1, 0, 0, 1, 1, 0, 0, 0});
  Tensor keep(DType::kBool, {2, 2, 1, 2});
  merge_ignore_masks(attention.as<const bool>(), bools({2, 2}, {0, 0, 0, 1}).as<const bool>(), keep.as<bool>());
  EXPECT_EQ(values_of(keep), (std::vector<double>{0, 1, 1, 0, 0, 0, 1, 0}));
}

TEST(Masks, OneAttentionMaskServesAllHeads) {
  Tensor keep(DType::kBool, {2, 2, 2, 2}, Placement::kHeadsInside);
  merge_ignore_masks(bools({2, 2}, {0, 1, 0, 0}).as<const bool>(), {}, keep.as<bool>());
  keep.each([&](auto n, auto h, auto i, auto j) { EXPECT_EQ(keep.get(n, h, i, j), i == 0 && j == 1 ? 0 : 1); });
}

TEST(Masks, WithoutAnyMaskEverythingIsKept) {
  Tensor keep(DType::kBool, {1, 1, 1, 2});
  merge_ignore_masks({}, {}, keep.as<bool>());
  EXPECT_EQ(values_of(keep), (std::vector<double>{1, 1}));
}

TEST(MaskErrors, NameExpectedAndGot) {
  const Tensor ignore(DType::kBool, {2, 2});
  Tensor keep(DType::kBool, {2, 3}), merged(DType::kBool, {2, 2, 3, 4}), whole(DType::kInt32, {2, 2});
  EXPECT_EQ(message_of<ShapeError>([&] { keep_from_ignore(ignore.as<const bool>(), keep.as<bool>()); }),
            "keep_from_ignore: keep has shape {2, 3}, expected {2, 2}, that of ignore");
  EXPECT_EQ(
      message_of<DtypeError>([&] { additive_from_keep(ignore.as<const bool>(), whole.view()); }),
      "additive_from_keep: additive has type int32, expected float32, float64, float16 or bfloat16; it is added to scores");
  EXPECT_EQ(
      message_of<ShapeError>([&] { merge_ignore_masks(ignore.as<const bool>(), {}, merged.as<bool>()); }),
      "merge_ignore_masks: attention_ignore has shape {2, 2}, expected {4, 3, 4} (index n * heads + h) or {3, 4} for keep of "
      "shape {2, 2, 3, 4}");
  EXPECT_EQ(message_of<ShapeError>([&] { merge_ignore_masks({}, ignore.as<const bool>(), merged.as<bool>()); }),
            "merge_ignore_masks: key_padding_ignore has shape {2, 2}, expected {2, 4} for keep of shape {2, 2, 3, 4}");
  EXPECT_EQ(message_of<ShapeError>([&] { merge_ignore_masks({}, {}, keep.as<bool>()); }),
            "merge_ignore_masks: keep has shape {2, 3}, expected {N, heads, L, S}");
  EXPECT_EQ(message_of<ShapeError>([&] { keep_from_ignore({}, keep.as<bool>()); }),
            "keep_from_ignore: ignore is missing; pass a view");
}

}  // namespace
}  // namespace qkv
