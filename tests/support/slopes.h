// Running backward() in tests, and central differences of forward(). Needs nothing but the library.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "qkv/backward.h"
#include "tests/support/case.h"

namespace qkv::testing {

/// The gradients of a loss by out and lse: normal numbers.
struct Loss {
  Tensor dout, dlse;
  explicit Loss(const Example& e, Placement placement = Placement::kContiguous)
      : dout(e.out(placement).normal(e.shape.seed * 10 + 8)), dlse(e.lse().normal(e.shape.seed * 10 + 9)) {}
};

/// What backward() gave; tensors that the example does not have are absent.
struct Slopes {
  Tensor dquery, dkey, dvalue, dbias, dalibi_slopes, dsinks;
  std::vector<Example::Parameters> dparameters;

  Slopes(const Example& e, Placement placement) {
    dquery = like(e.query, e.shape.dtype, placement);
    dkey = like(e.key, e.shape.dtype, placement);
    dvalue = like(e.value, e.shape.dtype, placement);
    if (e.bias) dbias = like(e.bias, e.lse_type(), placement);
    if (e.alibi_slopes) dalibi_slopes = like(e.alibi_slopes, e.lse_type());
    if (e.sinks) dsinks = like(e.sinks, e.lse_type());
    for (const auto& p : e.parameters) dparameters.push_back({p.name, like(p.tensor, e.lse_type())});
  }
  Gradients views() {
    Gradients g{.dquery = dquery.view(),
                .dkey = dkey.view(),
                .dvalue = dvalue.view(),
                .dbias = dbias.view(),
                .dalibi_slopes = dalibi_slopes.view(),
                .dsinks = dsinks.view()};
    for (auto& p : dparameters) g.dparameters.push_back({p.name, p.tensor.view()});
    return g;
  }
  /// f(name of the parameter, its gradient) for those that are there.
  template <class F> void each_parameter(F f) const {
    if (dbias) f("bias", dbias);
    if (dalibi_slopes) f("alibi_slopes", dalibi_slopes);
    if (dsinks) f("sinks", dsinks);
    for (const auto& p : dparameters) f(p.name, p.tensor);
  }

 private:
  static Tensor like(const Tensor& t, DType type, Placement placement = Placement::kContiguous) {
    const Layout& l = t.layout();
    return Tensor(type, {l.shape.begin(), l.shape.begin() + l.rank}, placement);
  }
};

/// What backward() needs to know of the forward pass.
enum class Sums { kExact, kOnlyLse };

/// What forward() leaves for backward().
struct Left {
  Tensor out, lse, row_max, row_sum;
  explicit Left(const Example& e, const Call& call = {}) : Left(e, e.attention, e.inputs(), call) {}
  /// With the example's queries, but another attention or other inputs.
  Left(const Example& e, const Attention& attention, const Inputs& inputs, const Call& call = {})
      : out(e.out()), lse(e.lse()), row_max(e.lse()), row_sum(e.lse()) {
    forward(attention, inputs,
            {.out = out.view(), .lse = lse.view(), .row_max = row_max.view(), .row_sum = row_sum.view()}, call);
  }
  Upstream upstream(const Loss& by, Sums sums = Sums::kExact) const {
    Upstream up{.out = out.view(), .lse = lse.view(), .dout = by.dout.view(), .dlse = by.dlse.view()};
    if (sums == Sums::kExact) up.row_max = row_max.view(), up.row_sum = row_sum.view();
    return up;
  }
};

/// Runs forward() and backward() into poisoned tensors.
inline Slopes slopes(const Example& e, const Loss& by, const Call& call = {},
                     Placement placement = Placement::kContiguous, Sums sums = Sums::kExact) {
  const Left left(e, call);
  Slopes s(e, placement);
  backward(e.attention, e.inputs(), left.upstream(by, sums), s.views(), call);
  return s;
}

/// sum of dout out + dlse lse over everything that is finite.
inline double loss(const Example& e, const Loss& by) {
  const Result r = run(e);
  double sum = 0;
  r.out.each(
      [&](int64_t a, int64_t b, int64_t c, int64_t d) { sum += r.out.get(a, b, c, d) * by.dout.get(a, b, c, d); });
  r.lse.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    if (std::isfinite(r.lse.get(a, b, c, d))) sum += r.lse.get(a, b, c, d) * by.dlse.get(a, b, c, d);
  });
  return sum;
}

/// Compares a gradient with differences of the loss by each element of `tensor`, which belongs to `e`.
inline ::testing::AssertionResult is_slope(const char* name, Example& e, const Loss& by, Tensor& tensor,
                                           const Tensor& gradient) {
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  if (!tensor) return result;
  tensor.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    if (!result) return;
    const double x = tensor.get(a, b, c, d), got = gradient.get(a, b, c, d);
    if (std::isinf(x)) {
      if (got != 0)
        result = ::testing::AssertionFailure()
                 << (std::string(name) + ": a gradient of " + std::to_string(got) + " through -inf");
      return;
    }
    constexpr double kStep = 0x1p-12;
    tensor.set(x + kStep, a, b, c, d);
    const double above = tensor.get(a, b, c, d), high = loss(e, by);
    tensor.set(x - kStep, a, b, c, d);
    const double below = tensor.get(a, b, c, d), low = loss(e, by);
    tensor.set(x, a, b, c, d);
    const double slope = (high - low) / (above - below);
    if (!(std::abs(got - slope) <= 1e-5 * (1 + std::abs(slope)))) {
      std::ostringstream text;
      text << name << "[" << a << ", " << b << ", " << c << ", " << d << "]: " << got << ", central difference "
           << slope;
      result = ::testing::AssertionFailure() << text.str();
    }
  });
  return result;
}

/// Compares every gradient of an example with differences.
inline void expect_slopes(Example& e) {
  const Loss by(e);
  const Slopes got = slopes(e, by);
  EXPECT_TRUE(is_slope("dquery", e, by, e.query, got.dquery));
  EXPECT_TRUE(is_slope("dkey", e, by, e.key, got.dkey));
  EXPECT_TRUE(is_slope("dvalue", e, by, e.value, got.dvalue));
  got.each_parameter([&](std::string_view name, const Tensor& gradient) {
    Tensor* tensor = name == "bias" ? &e.bias : name == "alibi_slopes" ? &e.alibi_slopes : &e.sinks;
    for (auto& p : e.parameters)
      if (p.name == name) tensor = &p.tensor;
    EXPECT_TRUE(is_slope(std::string(name).c_str(), e, by, *tensor, gradient));
  });
}

}  // namespace qkv::testing
