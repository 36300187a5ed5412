#include "qkv/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
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
constexpr DType kFloatingTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

/// Of a result near 1 in this type: a few roundings.
double tolerance(DType type) {
  switch (type) {
    case DType::kFloat64: return 1e-14;
    case DType::kFloat16: return 0x1p-10;
    case DType::kBFloat16: return 0x1p-7;
    default: return 1e-6;
  }
}

Tensor softmax_of(const Tensor& x, int axis = -1, const Tensor& keep = {}) {
  Tensor y(x.type(), {x.layout().shape.begin(), x.layout().shape.begin() + x.layout().rank});
  softmax(x.view(), y.view(), axis, keep.as<const bool>());
  return y;
}

Tensor log_softmax_of(const Tensor& x, const Tensor& keep = {}) {
  Tensor y(x.type(), {x.layout().shape.begin(), x.layout().shape.begin() + x.layout().rank});
  log_softmax(x.view(), y.view(), -1, keep.as<const bool>());
  return y;
}

double log_sum_exp_of(const Tensor& line, const Tensor& keep = {}) {
  Tensor y(line.type(), {1});
  log_sum_exp(line.view(), y.view(), -1, keep.as<const bool>());
  return y.get(0);
}

Tensor floats(const std::vector<double>& numbers) {
  return tensor(DType::kFloat32, {int64_t(numbers.size())}, numbers);
}
Tensor bools(const std::vector<double>& numbers) { return tensor(DType::kBool, {int64_t(numbers.size())}, numbers); }

TEST(Softmax, HandComputedValues) {
  for (DType type : kFloatingTypes) {
    const Tensor y = softmax_of(tensor(type, {2, 2}, {0, std::log(3), std::log(4), 0}));
    EXPECT_NEAR(y.get(0, 0), 0.25, tolerance(type)) << name(type);
    EXPECT_NEAR(y.get(0, 1), 0.75, tolerance(type)) << name(type);
    EXPECT_NEAR(y.get(1, 0), 0.8, tolerance(type)) << name(type);
    EXPECT_NEAR(y.get(1, 1), 0.2, tolerance(type)) << name(type);
  }
}

TEST(Softmax, RowsSumToOneEvenWhenLogitsAreHuge) {
  for (double big : {1e4, 1e30, 3e38, -3e38}) {
    const Tensor y = softmax_of(floats({big, big, big, -big}));
    const double rest = big > 0 ? 1.0 / 3 : 0;
    EXPECT_NEAR(y.get(0), rest, 1e-6) << big;
    EXPECT_NEAR(y.get(3), 1 - 3 * rest, 1e-6) << big;
  }
}

TEST(Softmax, MinusInfinityIsTheSmallestScore) {
  const Tensor y = softmax_of(floats({-kInfinity, 1, 1}));
  EXPECT_EQ(y.get(0), 0);
  EXPECT_EQ(y.get(1), 0.5);
  const Tensor logs = log_softmax_of(floats({-kInfinity, 1, 1}));
  EXPECT_EQ(logs.get(0), -kInfinity);
  EXPECT_NEAR(logs.get(2), -std::log(2), 1e-6);
}

TEST(Softmax, ALineInWhichNothingCountsIsZero) {
  for (const Tensor& keep : {bools({0, 0}), Tensor{}}) {
    const Tensor x = keep ? floats({1, NAN}) : floats({-kInfinity, -kInfinity});
    EXPECT_EQ(softmax_of(x, -1, keep).get(0), 0);
    EXPECT_EQ(softmax_of(x, -1, keep).get(1), 0);
    EXPECT_EQ(log_softmax_of(x, keep).get(0), -kInfinity);
    EXPECT_EQ(log_softmax_of(x, keep).get(1), -kInfinity);
    EXPECT_EQ(log_sum_exp_of(x, keep), -kInfinity);
  }
}

TEST(Softmax, WhatIsNotKeptHasNoInfluenceWhateverItHolds) {
  for (double hidden : {double(NAN), kInfinity, -kInfinity, 3e38}) {
    const Tensor x = floats({0, hidden, std::log(3)}), keep = bools({1, 0, 1});
    const Tensor y = softmax_of(x, -1, keep);
    EXPECT_NEAR(y.get(0), 0.25, 1e-6) << hidden;
    EXPECT_EQ(y.get(1), 0) << hidden;
    EXPECT_NEAR(y.get(2), 0.75, 1e-6) << hidden;
    EXPECT_NEAR(log_softmax_of(x, keep).get(2), std::log(0.75), 1e-6) << hidden;
    EXPECT_EQ(log_softmax_of(x, keep).get(1), -kInfinity) << hidden;
    EXPECT_NEAR(log_sum_exp_of(x, keep), std::log(4), 1e-6) << hidden;
  }
}

TEST(Softmax, AKeptNanOrInfinityMakesItsLineNanAndNoOther) {
  for (double bad : {double(NAN), kInfinity}) {
    const Tensor x = tensor(DType::kFloat32, {2, 3}, {0, bad, 1, 0, 0, 5});
    const Tensor keep = tensor(DType::kBool, {2, 3}, {1, 1, 0, 1, 1, 0});
    const Tensor y = softmax_of(x, -1, keep), logs = log_softmax_of(x, keep);
    EXPECT_TRUE(std::isnan(y.get(0, 0)) && std::isnan(y.get(0, 1))) << bad;
    EXPECT_TRUE(std::isnan(logs.get(0, 0)) && std::isnan(logs.get(0, 1))) << bad;
    EXPECT_EQ(y.get(0, 2), 0) << "not kept";
    EXPECT_EQ(logs.get(0, 2), -kInfinity) << "not kept";
    EXPECT_EQ(y.get(1, 0), 0.5);
    EXPECT_TRUE(std::isnan(log_sum_exp_of(floats({0, bad})))) << bad;
  }
}

TEST(Softmax, GoesAlongAnyAxisOfAnyPlacement) {
  for (Placement placement : testing::kPlacements) {
    for (int axis = -4; axis < 4; ++axis) {
      Tensor x(DType::kFloat64, {3, 2, 4, 5}, placement), y(DType::kFloat64, {3, 2, 4, 5}, placement);
      x.normal(7, 3);
      softmax(x.view(), y.view(), axis);
      const size_t along = size_t(axis < 0 ? axis + 4 : axis);
      x.each([&](auto... index) {
        double sum = 0;
        std::array<int64_t, 4> at{index...};
        for (at[along] = 0; at[along] < x.layout().shape[along]; ++at[along])
          sum += std::exp(x.get(at[0], at[1], at[2], at[3]));
        ASSERT_NEAR(y.get(index...), std::exp(x.get(index...)) / sum, 1e-14) << name(placement) << " axis " << axis;
      });
    }
  }
}

TEST(Softmax, AMaskIsBroadcastOverItsAxesOfSizeOne) {
  Tensor x(DType::kFloat32, {2, 3, 4});
  x.normal(1);
  const Tensor keep = tensor(DType::kBool, {2, 1, 4}, {1, 0, 1, 1, 0, 0, 0, 1});
  const Tensor y = softmax_of(x, -1, keep);
  x.each([&](int64_t a, int64_t b, int64_t c, int64_t) { EXPECT_EQ(y.get(a, b, c) > 0, keep.get(a, 0, c) != 0); });
  const Tensor rows = softmax_of(x, 1, tensor(DType::kBool, {1, 1, 1}, {0}));
  rows.each([&](auto... i) { EXPECT_EQ(rows.get(i...), 0); });
}

TEST(Softmax, MayWriteOverItsInput) {
  Tensor x(DType::kFloat16, {3, 5}, Placement::kTransposed);
  x.normal(5);
  const Tensor apart = softmax_of(x);
  softmax(x.view(), x.view());
  x.each([&](auto... i) { EXPECT_EQ(x.get(i...), apart.get(i...)); });
}

TEST(Softmax, MayGiveAnotherTypeThanItTakes) {
  Tensor y(DType::kFloat64, {2});
  softmax(floats({0, 0}).view(), y.view());
  EXPECT_EQ(y.get(1), 0.5);
}

TEST(Softmax, ThreadsChangeNoBit) {
  Tensor x(DType::kFloat32, {300, 257}), one(DType::kFloat32, {300, 257});
  x.normal(3, 4);
  ThreadPool alone(1);
  softmax(x.view(), one.view(), 0, {}, {.executor = &alone});
  for (int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    Workspace workspace;
    Tensor y(DType::kFloat32, {300, 257});
    softmax(x.view(), y.view(), 0, {}, {.executor = &pool, .workspace = &workspace});
    y.each([&](auto... i) { ASSERT_EQ(y.get(i...), one.get(i...)); });
  }
}

TEST(Softmax, StopsWhenAsked) {
  std::stop_source stop;
  stop.request_stop();
  Tensor y(DType::kFloat32, {2});
  EXPECT_THROW(softmax(floats({1, 2}).view(), y.view(), -1, {}, {.stop = stop.get_token()}), Cancelled);
}

TEST(LogSumExp, ReducesItsAxisToOne) {
  const Tensor x = tensor(DType::kFloat32, {2, 2}, {0, std::log(3), 1000, 1000});
  Tensor y(DType::kFloat32, {2, 1});
  log_sum_exp(x.view(), y.view());
  EXPECT_NEAR(y.get(0, 0), std::log(4), 1e-6);
  EXPECT_NEAR(y.get(1, 0), 1000 + std::log(2), 1e-4);
  Tensor columns(DType::kFloat64, {1, 2});
  log_sum_exp(x.view(), columns.view(), 0);
  EXPECT_NEAR(columns.get(0, 0), 1000, 1e-6);
}

TEST(LogSumExp, OfNothingIsMinusInfinity) {
  const Tensor x(DType::kFloat32, {2, 0});
  Tensor y(DType::kFloat32, {2, 1}), none(DType::kFloat32, {2, 0});
  log_sum_exp(x.view(), y.view());
  EXPECT_EQ(y.get(0), -kInfinity);
  EXPECT_EQ(y.get(1), -kInfinity);
  softmax(x.view(), none.view());
}

TEST(SoftmaxErrors, NameArgumentExpectedAndGot) {
  const Tensor x(DType::kFloat32, {2, 3});
  Tensor y(DType::kFloat32, {2, 3}), wrong(DType::kFloat32, {3, 2}), whole(DType::kInt32, {2, 3});
  const Tensor keep(DType::kBool, {2, 2}), flat(DType::kBool, {3});
  EXPECT_EQ(message_of<ShapeError>([&] { softmax(View<const void>{}, y.view()); }),
            "softmax: x is missing; pass a view");
  EXPECT_EQ(message_of<OptionError>([&] { softmax(x.view(), y.view(), 2); }),
            "softmax: axis is 2, expected -2 to 1 for x of shape {2, 3}; -1 is the last one");
  EXPECT_EQ(message_of<ShapeError>([&] { softmax(x.view(), wrong.view()); }),
            "softmax: y has shape {3, 2}, expected {2, 3}; allocate it so");
  EXPECT_EQ(message_of<ShapeError>([&] { log_sum_exp(x.view(), y.view()); }),
            "log_sum_exp: y has shape {2, 3}, expected {2, 1}; allocate it so");
  EXPECT_EQ(message_of<DtypeError>([&] { softmax(whole.view(), y.view()); }),
            "softmax: x has type int32, expected float32, float64, float16 or bfloat16; convert it");
  EXPECT_EQ(message_of<DtypeError>([&] { log_softmax(x.view(), whole.view()); }),
            "log_softmax: y has type int32, expected float32, float64, float16 or bfloat16; convert it");
  EXPECT_EQ(message_of<ShapeError>([&] { softmax(x.view(), y.view(), -1, keep.as<const bool>()); }),
            "softmax: keep has shape {2, 2}, expected {2, 3} with each axis full or 1; insert axes of size 1");
  EXPECT_THROW(softmax(x.view(), y.view(), -1, flat.as<const bool>()), ShapeError);
  EXPECT_THROW(softmax(View<const float>(nullptr, {2, 3}), y.view()), OptionError) << "null data";
}

}  // namespace
}  // namespace qkv
