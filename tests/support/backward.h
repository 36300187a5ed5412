// Running backward() in tests.
#pragma once
#include "qkv/backward.h"
#include "reference/gradients.h"
#include "tests/support/compare.h"

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

inline ::testing::AssertionResult same_bits(const Slopes& a, const Slopes& b) {
  for (const auto& [name, x, y] : {std::tuple{"dquery", &a.dquery, &b.dquery},
                                   {"dkey", &a.dkey, &b.dkey},
                                   {"dvalue", &a.dvalue, &b.dvalue}})
    if (const auto same = same_bits(x->view(), y->view()); !same)
      return failure(std::string(name) + ": " + same.message());
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  a.each_parameter([&](std::string_view name, const Tensor& x) {
    b.each_parameter([&](std::string_view other, const Tensor& y) {
      if (name != other) return;
      if (const auto same = same_bits(x.view(), y.view()); !same) result = failure(std::string(name) + ": " + same.message());
    });
  });
  return result;
}

/// What the oracle and the plain evaluation say of the gradients of a case.
struct ExpectedSlopes {
  reference::GradientAnswer oracle, plain;

  ExpectedSlopes(const Example& e, const Loss& by, const Left& left) {
    const Inputs in = e.inputs();
    const reference::Problem problem(e.attention, in);
    const auto number = [&e](const Tensor& t, int64_t b, int64_t h, int64_t i, int64_t d) {
      const int64_t first = e.shape.packed ? int64_t(e.cumulative_query_lengths.get(b)) : 0;
      return element(e, t, b, h, first + i, d);
    };
    reference::LossGradients loss{
        [=, &by](int64_t b, int64_t h, int64_t i, int64_t d) { return number(by.dout, b, h, i, d); },
        [=, &by](int64_t b, int64_t h, int64_t i) { return number(by.dlse, b, h, i, 0); },
        {}};
    oracle = reference::gradients<long double>(problem, in, loss);
    loss.out = [=, &left](int64_t b, int64_t h, int64_t i, int64_t d) { return number(left.out, b, h, i, d); };
    plain = e.shape.dtype == DType::kFloat64 ? reference::gradients<double>(problem, in, loss)
                                             : reference::gradients<float>(problem, in, loss);
  }

  /// Whether every gradient lies within the bound.
  ::testing::AssertionResult within_bound(const Example& e, const Slopes& got) const {
    for (const auto& [name, tensor, right, rough] :
         {std::tuple{"dquery", &got.dquery, &oracle.dquery, &plain.dquery},
          {"dkey", &got.dkey, &oracle.dkey, &plain.dkey},
          {"dvalue", &got.dvalue, &oracle.dvalue, &plain.dvalue}}) {
      Bound bound(name, e.shape.dtype);
      const Tensor& starts = tensor == &got.dquery ? e.cumulative_query_lengths : e.cumulative_key_lengths;
      for (int64_t b = 0; b < e.shape.batch; ++b) {
        const int64_t first = starts ? int64_t(starts.get(b)) : 0;
        const int64_t length = starts ? int64_t(starts.get(b + 1)) - first : right->length;
        for (int64_t h = 0; h < right->heads; ++h)
          for (int64_t i = 0; i < length; ++i)
            for (int64_t d = 0; d < right->width; ++d)
              bound.add(element(e, *tensor, b, h, first + i, d), rounded((*rough)(b, h, i, d), e.shape.dtype),
                        (*right)(b, h, i, d));
      }
      if (const auto ok = bound.holds(); !ok) return ok;
    }
    ::testing::AssertionResult result = ::testing::AssertionSuccess();
    got.each_parameter([&](std::string_view name, const Tensor& tensor) {
      Bound bound("gradient by " + std::string(name), e.lse_type());
      const auto right = oracle.by_tensor.find(name), rough = plain.by_tensor.find(name);
      size_t n = 0;
      tensor.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
        const bool any = right != oracle.by_tensor.end();
        bound.add(tensor.get(a, b, c, d), any ? rough->second[n] : 0, any ? right->second[n] : 0);
        ++n;
      });
      if (const auto ok = bound.holds(); !ok && result) result = ok;
    });
    return result;
  }

 private:
  static double rounded(double x, DType type) {
    if (type == DType::kFloat16) return double(float16(float(x)));
    if (type == DType::kBFloat16) return double(bfloat16(float(x)));
    return x;
  }
};

}  // namespace qkv::testing
