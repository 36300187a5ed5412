// What the tests of this folder share: tensors of rows, threads, gradients by central differences.
#pragma once
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/compare.h"
#include "tests/support/message.h"
#include "tests/support/targets.h"
#include "tests/support/tensor.h"

namespace qkv::nn::testing {

using qkv::testing::each_instruction_set;
using qkv::testing::message_of;
using qkv::testing::Placement;
using qkv::testing::same_bits;
using qkv::testing::slice;
using qkv::testing::Tensor;

inline constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
inline constexpr int64_t kOddSizes[] = {1, 2, 7, 63, 64, 65, 129};
inline DType arithmetic(DType type) { return type == DType::kFloat64 ? type : DType::kFloat32; }

/// Half the distance between neighbours of a type at 1.
inline double rounding(DType type) { return qkv::testing::epsilon(type) / 2; }

/// The derivative of f() by one element of t, a float64 tensor, which f reads.
inline double central_difference(Tensor& t, int64_t row, int64_t column, const std::function<double()>& f,
                                 double step = 1e-5) {
  const double x = t.get(row, column);
  t.set(x + step, row, column);
  const double above = f();
  t.set(x - step, row, column);
  const double below = f();
  t.set(x, row, column);
  return (above - below) / (2 * step);
}

/// Whether `gradient` is that of f by every element of t, to 1e-7 of the largest one.
inline ::testing::AssertionResult is_gradient(const Tensor& gradient, Tensor& t, const std::function<double()>& f) {
  double error = 0, largest = 1;
  t.each([&](int64_t r, int64_t c, int64_t, int64_t) {
    const double expected = central_difference(t, r, c, f);
    error = std::max(error, std::abs(expected - gradient.get(r, c)));
    if (std::isnan(gradient.get(r, c))) error = 1 / 0.0;
    largest = std::max(largest, std::abs(expected));
  });
  if (error <= 1e-7 * largest) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "a gradient is off by " << error << ", the largest is " << largest;
}

/// The sum of a y over the elements of two tensors of one shape: a loss whose gradient by y is a.
inline double dot(const Tensor& a, const Tensor& y) {
  double sum = 0;
  y.each([&](int64_t r, int64_t c, int64_t, int64_t) { sum += a.get(r, c) * y.get(r, c); });
  return sum;
}

/// f(call) with 1, 2, 3 and 8 threads; returns what it gave with one, which all others must equal bit by bit.
template <class F> Tensor same_for_any_threads(F f) {
  ThreadPool one(1);
  Tensor wanted = f(Call{.executor = &one});
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(same_bits(wanted, f(Call{.executor = &pool}))) << threads << " threads";
  }
  return wanted;
}

}  // namespace qkv::nn::testing
