#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "qkv/positions.h"
#include "tests/support/compare.h"
#include "tests/support/message.h"

namespace qkv {
namespace {

using testing::message_of;
using testing::Placement;
using testing::same_bits;
using testing::Tensor;
using testing::tensor;
using Sides = T5Buckets::Sides;

TEST(T5Bucket, IsThatOfTransformersForEveryDistance) {
  // Buckets of the distances -10000 to 10000 by transformers 4.57.6 and torch 2.13, as 64-bit FNV-1a hashes, a bucket a step.
  const struct {
    int buckets, max_distance;
    Sides sides;
    uint64_t hash;
  } pinned[] = {
      {32, 128, Sides::kBoth, 0xe02af39d783d4b37},  {32, 256, Sides::kBoth, 0xee6194560bc682cf},
      {32, 1000, Sides::kBoth, 0x419239365439da5f}, {64, 128, Sides::kBoth, 0x292e12fbdc3e6517},
      {64, 256, Sides::kBoth, 0x2a21b9d57a966797},  {64, 1000, Sides::kBoth, 0x590b7accf1b499ef},
      {20, 128, Sides::kBoth, 0x4a0f10ab3552a47b},  {20, 256, Sides::kBoth, 0x81d922218921a5cb},
      {20, 1000, Sides::kBoth, 0xf9115300d2c20643}, {32, 128, Sides::kPast, 0x634811f049da10cf},
      {32, 256, Sides::kPast, 0xa75d01d317dec09c},  {32, 1000, Sides::kPast, 0x3a93cf40813efa5b},
      {64, 128, Sides::kPast, 0x41a0ead9e1af823b},  {64, 256, Sides::kPast, 0x5b8691bc76c767a9},
      {64, 1000, Sides::kPast, 0x43405d268d588ebb}, {20, 128, Sides::kPast, 0x718d7d8172d61c21},
      {20, 256, Sides::kPast, 0xdc986265216ce69d},  {20, 1000, Sides::kPast, 0xe145e8e42b0afe04},
  };
  for (const auto& p : pinned) {
    uint64_t hash = 14695981039346656037u;
    for (int64_t d = -10000; d <= 10000; ++d)
      hash = (hash ^ uint64_t(t5_bucket({p.buckets, p.max_distance, p.sides}, d))) * 1099511628211u;
    EXPECT_EQ(hash, p.hash) << p.buckets << " " << p.max_distance << " " << int(p.sides);
  }
}

TEST(T5Bucket, HasItsBordersAtPowersOfTwo) {
  for (const int d : {8, 16, 32, 64, 128}) {
    EXPECT_EQ(t5_bucket({}, -d), std::min(15, 8 + 2 * (int(std::log2(d)) - 3)));
    EXPECT_EQ(t5_bucket({}, 1 - d), t5_bucket({}, -d) - 1 + (d == 128));
    EXPECT_EQ(t5_bucket({}, d), t5_bucket({}, -d) + 16);
  }
  EXPECT_EQ(t5_bucket({}, int64_t{1} << 40), 31);
  EXPECT_EQ(t5_bucket({.sides = Sides::kPast}, 5), 0);
}

TEST(T5Index, IsTheBucketOfEachPairAtAnyOffset) {
  Tensor all(DType::kInt32, {300, 300}), step(DType::kInt32, {1, 200}, Placement::kReversed);
  t5_index({.sides = Sides::kPast}, 0, 0, all.as<int32_t>());
  t5_index({.sides = Sides::kPast}, 250, 51, step.as<int32_t>());
  all.each([&](int64_t i, int64_t j, int64_t, int64_t) {
    ASSERT_EQ(all.get(i, j), t5_bucket({.sides = Sides::kPast}, j - i));
  });
  for (int64_t j = 0; j < 200; ++j) ASSERT_EQ(step.get(0, j), all.get(250, 51 + j));
}

TEST(T5Index, RefusesBucketsThatCannotBe) {
  EXPECT_EQ(message_of<OptionError>([] { t5_bucket({.buckets = 31}, 1); }),
            "t5_bucket: buckets is 31, expected an even number, 4 or more: half of them for each side");
  EXPECT_EQ(message_of<OptionError>([] { t5_bucket({.max_distance = 8}, 1); }),
            "t5_bucket: max_distance is 8, expected more than 8, the distances that have a bucket each");
}

TEST(WindowIndex, NumbersTheOffsetsBetweenCells) {
  Tensor index(DType::kInt32, {6, 6});
  window_index(2, 3, index.as<int32_t>());
  // Worked by hand: cells (y, x) = (0,0) (0,1) (0,2) (1,0) (1,1) (1,2); (dy + 1) * 5 + dx + 2.
  const double expected[] = {7,  6,  5,  2, 1, 0, 8,  7,  6,  3, 2, 1, 9,  8,  7,  4, 3, 2,
                             12, 11, 10, 7, 6, 5, 13, 12, 11, 8, 7, 6, 14, 13, 12, 9, 8, 7};
  for (int64_t i = 0; i < 36; ++i) EXPECT_EQ(index.get(i / 6, i % 6), expected[i]) << i;
  EXPECT_EQ(message_of<ShapeError>([&] { window_index(3, 3, index.as<int32_t>()); }),
            "window_index: index has shape {6, 6}, expected {9, 9}; allocate or slice it so");
  EXPECT_EQ(message_of<OptionError>([&] { window_index(0, 3, index.as<int32_t>()); }),
            "window_index: the window is 0 x 3, expected 1 to 32768 cells");
}

TEST(RelativeBias, TakesRowsOfTheTable) {
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16})
    for (const Placement placement : testing::kPlacements) {
      Tensor table(type, {32, 3}, placement), bias(type, {1, 3, 5, 65}, placement), index(DType::kInt32, {5, 65});
      table.normal(1);
      t5_index({}, 60, 0, index.as<int32_t>());
      relative_bias_forward(index.as<int32_t>(), table.view(), bias.view());
      bias.each([&](int64_t, int64_t h, int64_t i, int64_t j) {
        ASSERT_EQ(bias.get(0, h, i, j), table.get(int64_t(index.get(i, j)), h));
      });
    }
}

TEST(RelativeBias, GradientIsTheCentralDifferenceAndTheSameForAnyThreads) {
  Tensor table(DType::kFloat64, {15, 2}), dtable(DType::kFloat64, {15, 2}), index(DType::kInt32, {6, 6});
  Tensor bias(DType::kFloat64, {1, 2, 6, 6}), dbias(DType::kFloat64, {1, 2, 6, 6});
  table.normal(1);
  dbias.normal(2);
  window_index(2, 3, index.as<int32_t>());
  relative_bias_backward(index.as<int32_t>(), dbias.view(), dtable.view());
  const auto loss = [&] {
    relative_bias_forward(index.as<int32_t>(), table.view(), bias.view());
    double sum = 0;
    bias.each([&](auto... at) { sum += bias.get(at...) * dbias.get(at...); });
    return sum;
  };
  table.each([&](int64_t n, int64_t h, int64_t, int64_t) {
    const double value = table.get(n, h), step = 0x1p-10;
    table.set(value + step, n, h);
    const double above = loss();
    table.set(value - step, n, h);
    const double below = loss();
    table.set(value, n, h);
    ASSERT_NEAR(dtable.get(n, h), (above - below) / (2 * step), 1e-10);
  });
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    Tensor again(DType::kFloat64, {15, 2});
    relative_bias_backward(index.as<int32_t>(), dbias.view(), again.view(), {.executor = &pool});
    ASSERT_TRUE(same_bits(again, dtable));
  }
}

TEST(RelativeBias, RefusesAnIndexWithoutARow) {
  Tensor table(DType::kFloat32, {8, 2}), bias(DType::kFloat32, {1, 2, 2, 2}), narrow(DType::kFloat32, {1, 2, 2, 1});
  const Tensor index = tensor(DType::kInt32, {2, 2}, {0, 1, 8, 0});
  EXPECT_EQ(message_of<OptionError>([&] { relative_bias_forward(index.as<int32_t>(), table.view(), bias.view()); }),
            "relative_bias_forward: index[1, 0] is 8 but the table has 8 rows; make both from the same sizes");
  EXPECT_EQ(message_of<ShapeError>([&] { relative_bias_forward(index.as<int32_t>(), table.view(), narrow.view()); }),
            "relative_bias_forward: bias has shape {1, 2, 2, 1}, expected {1, 2, 2, 2}; allocate or slice it so");
}

TEST(RelativeShift, ReadsDistancesAsKeys) {
  for (const Placement placement : testing::kPlacements)
    for (const Extents& sizes : {Extents{1, 1}, {3, 3}, {4, 9}, {9, 9}, {1, 5}}) {
      const int64_t length = sizes[0], width = sizes[1];
      Tensor x(DType::kFloat32, {2, 2, length, width}, placement), y(DType::kFloat32, {2, 2, length, width}, placement);
      x.normal(3);
      relative_shift_forward(x.view(), y.view());
      y.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
        if (j > i + width - length) return;
        ASSERT_EQ(y.get(b, h, i, j), x.get(b, h, i, j - i + length - 1));
      });
    }
  Tensor x(DType::kFloat32, {1, 1, 3, 3}), y(DType::kFloat32, {1, 1, 3, 3});
  x.values({1, 2, 3, 4, 5, 6, 7, 8, 9});
  relative_shift_forward(x.view(), y.view());
  EXPECT_TRUE(same_bits(y, tensor(DType::kFloat32, {1, 1, 3, 3}, {3, 0, 4, 5, 6, 0, 7, 8, 9})));
}

TEST(RelativeShift, GradientIsTheTransposedMap) {
  for (const Extents& sizes : {Extents{1, 1}, {3, 3}, {4, 9}, {9, 4}, {7, 2}}) {
    const int64_t length = sizes[0], width = sizes[1];
    Tensor x(DType::kFloat64, {1, 2, length, width}), y(DType::kFloat64, {1, 2, length, width});
    Tensor dy(DType::kFloat64, {1, 2, length, width}), dx(DType::kFloat64, {1, 2, length, width});
    dy.normal(4);
    relative_shift_backward(dy.view(), dx.view());
    x.fill(0.0);
    x.each([&](auto... at) {
      x.set(1, at...);
      relative_shift_forward(x.view(), y.view());
      x.set(0, at...);
      double sum = 0;
      y.each([&](auto... to) { sum += y.get(to...) * dy.get(to...); });
      ASSERT_EQ(dx.get(at...), sum);
    });
  }
  Tensor x(DType::kFloat32, {1, 1, 3, 3});
  EXPECT_EQ(message_of<OptionError>([&] { relative_shift_forward(x.view(), x.view()); }),
            "relative_shift_forward: y is x, expected other memory: elements move between rows");
}

}  // namespace
}  // namespace qkv
