#include "qkv/init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/ceil_div.h"
#include "core/elements.h"
#include "core/parallel.h"
#include "nn/arguments.h"
#include "qkv/dropout.h"

namespace qkv {
namespace {

constexpr int kRounds = 10;  // the authors' recommendation; 7 is the fewest that pass all tests

void expect_fan(const char* function, const char* name, int64_t fan) {
  if (fan < 1) option_error("{}: {} is {}, expected 1 or more", function, name, fan);
}

/// 128 bits of an element: its number in C order, and a draw where one is not enough.
std::array<uint64_t, 2> bits_of(RandomStream stream, int64_t element, uint32_t draw) {
  const auto n = uint64_t(element);
  const auto words = philox({uint32_t(n), uint32_t(n >> 32), stream.tensor, draw}, stream.seed, kRounds);
  return {uint64_t{words[1]} << 32 | words[0], uint64_t{words[3]} << 32 | words[2]};
}
/// In [0, 1), a multiple of 2^-53.
double unit(uint64_t bits) { return double(bits >> 11) * 0x1p-53; }

double uniform(RandomStream stream, int64_t element) { return 2 * unit(bits_of(stream, element, 0)[0]) - 1; }

double normal(RandomStream stream, int64_t element, uint32_t draw) {
  const auto bits = bits_of(stream, element, draw);
  // 1 - u lies in (0, 1]: its logarithm is finite.
  return std::sqrt(-2 * std::log(1 - unit(bits[0]))) * std::cos(2 * std::numbers::pi * unit(bits[1]));
}

/// From normal proposals, or, where those would rarely be kept, from uniform ones kept with the density's probability.
double truncated(RandomStream stream, int64_t element, double cut) {
  for (uint32_t draw = 0;; ++draw) {
    if (cut >= 1) {
      const double x = normal(stream, element, draw);
      if (std::abs(x) <= cut) return x;
      continue;
    }
    const auto bits = bits_of(stream, element, draw);
    const double x = cut * (2 * unit(bits[0]) - 1);
    if (unit(bits[1]) <= std::exp(-x * x / 2)) return x;
  }
}

/// Sets every element to factor * f(its number in C order).
template <class F> void fill(const char* function, View<void> w, double factor, const Call& call, const F& f) {
  constexpr int64_t kElementsOfAnItem = 1 << 12;
  arguments::floating(function, "w", w);
  const int axis = w.rank - 1;
  const int64_t width = w.shape[axis], lines = width == 0 ? 0 : w.size() / width;
  const int64_t parts = ceil_div(width, kElementsOfAnItem),
                group = std::max<int64_t>(1, kElementsOfAnItem / std::max<int64_t>(1, width));
  const auto part_of = [&](int64_t line, int64_t first) {
    int64_t at = 0, rest = line;
    for (int a = axis; a-- > 0; rest /= w.shape[a]) at += rest % w.shape[a] * w.strides[a];
    double values[kElementsOfAnItem];
    const int64_t n = std::min(kElementsOfAnItem, width - first);
    for (int64_t i = 0; i < n; ++i) values[i] = factor * f(line * width + first + i);
    store(w, at + first * w.strides[axis], w.strides[axis], n, values);
  };
  if (parts > 1) {
    parallel(call, lines * parts, [&](int64_t item) { part_of(item / parts, item % parts * kElementsOfAnItem); });
    return;
  }
  parallel(call, ceil_div(lines, group), [&](int64_t item) {
    for (int64_t line = item * group; line < std::min(lines, (item + 1) * group); ++line) part_of(line, 0);
  });
}

void expect_size(const char* function, const char* name, double value) {
  if (!(value >= 0) || !std::isfinite(value))
    option_error("{}: {} is {}, expected a finite number, 0 or more", function, name, value);
}

}  // namespace

double xavier_uniform_bound(Fans fans, double gain) { return std::sqrt(3.0) * xavier_normal_deviation(fans, gain); }
double xavier_normal_deviation(Fans fans, double gain) {
  expect_fan("xavier", "in", fans.in);
  expect_fan("xavier", "out", fans.out);
  return gain * std::sqrt(2 / (double(fans.in) + double(fans.out)));
}
double kaiming_uniform_bound(int64_t in, double gain) { return std::sqrt(3.0) * kaiming_normal_deviation(in, gain); }
double kaiming_normal_deviation(int64_t in, double gain) {
  expect_fan("kaiming", "in", in);
  return gain / std::sqrt(double(in));
}
double lecun_uniform_bound(int64_t in) { return std::sqrt(3.0) * lecun_normal_deviation(in); }
double lecun_normal_deviation(int64_t in) {
  expect_fan("lecun", "in", in);
  return 1 / std::sqrt(double(in));
}
double gpt2_residual_deviation(int64_t layers, double deviation) {
  expect_fan("gpt2_residual_deviation", "layers", layers);
  return deviation / std::sqrt(2 * double(layers));
}

void fill_uniform(View<void> w, double bound, RandomStream stream, const Call& call) {
  expect_size("fill_uniform", "bound", bound);
  fill("fill_uniform", w, bound, call, [&](int64_t n) { return uniform(stream, n); });
}

void fill_normal(View<void> w, double deviation, RandomStream stream, const Call& call) {
  expect_size("fill_normal", "deviation", deviation);
  fill("fill_normal", w, deviation, call, [&](int64_t n) { return normal(stream, n, 0); });
}

void fill_truncated_normal(View<void> w, double deviation, RandomStream stream, double cut, const Call& call) {
  expect_size("fill_truncated_normal", "deviation", deviation);
  if (!(cut > 0)) option_error("fill_truncated_normal: cut is {}, expected a number of deviations above 0", cut);
  fill("fill_truncated_normal", w, deviation, call, [&](int64_t n) { return truncated(stream, n, cut); });
}

}  // namespace qkv
