// What backward() gave, compared bit by bit and with the oracle.
#pragma once
#include <string>

#include "reference/gradients.h"
#include "tests/support/compare.h"
#include "tests/support/slopes.h"

namespace qkv::testing {

inline ::testing::AssertionResult same_bits(const Slopes& a, const Slopes& b) {
  for (const auto& [name, x, y] :
       {std::tuple{"dquery", &a.dquery, &b.dquery}, {"dkey", &a.dkey, &b.dkey}, {"dvalue", &a.dvalue, &b.dvalue}})
    if (const auto same = same_bits(x->view(), y->view()); !same)
      return failure(std::string(name) + ": " + same.message());
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  a.each_parameter([&](std::string_view name, const Tensor& x) {
    b.each_parameter([&](std::string_view other, const Tensor& y) {
      if (name != other) return;
      if (const auto same = same_bits(x.view(), y.view()); !same)
        result = failure(std::string(name) + ": " + same.message());
    });
  });
  return result;
}

/// What the oracle and the plain evaluation say of the gradients of a case, from what forward() left.
struct ExpectedSlopes {
  reference::GradientAnswer oracle, plain;

  ExpectedSlopes(const Example& e, const Loss& by, const Left& left, Sums sums = Sums::kExact) {
    const Inputs in = e.inputs();
    const reference::Problem problem(e.attention, in);
    const auto number = [&e](const Tensor& t, int64_t b, int64_t h, int64_t i, int64_t d) {
      const int64_t first = e.shape.packed ? int64_t(e.cumulative_query_lengths.get(b)) : 0;
      return element(e, t, b, h, first + i, d);
    };
    reference::LossGradients loss{
        [=, &by](int64_t b, int64_t h, int64_t i, int64_t d) { return number(by.dout, b, h, i, d); },
        [=, &by](int64_t b, int64_t h, int64_t i) { return number(by.dlse, b, h, i, 0); },
        {},
        {}};
    loosely_ = sums == Sums::kOnlyLse;
    if (loosely_) loss.lse = [=, &left](int64_t b, int64_t h, int64_t i) { return number(left.lse, b, h, i, 0); };
    oracle = reference::gradients<long double>(problem, in, loss);
    loss.out = [=, &left](int64_t b, int64_t h, int64_t i, int64_t d) { return number(left.out, b, h, i, d); };
    plain = e.shape.dtype == DType::kFloat64 ? reference::gradients<double>(problem, in, loss)
                                             : reference::gradients<float>(problem, in, loss);
  }

  /// Adds gradients to their bounds, by name.
  void add(const Example& e, const Slopes& got, Bounds& bounds) const {
    for (const auto& [name, tensor, right, rough] : {std::tuple{"dquery", &got.dquery, &oracle.dquery, &plain.dquery},
                                                     {"dkey", &got.dkey, &oracle.dkey, &plain.dkey},
                                                     {"dvalue", &got.dvalue, &oracle.dvalue, &plain.dvalue}}) {
      Bound& bound = bounds.try_emplace(name, name, e.shape.dtype).first->second;
      if (loosely_) bound.loosen(oracle.largest_score);
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
    }
    got.each_parameter([&](std::string_view name, const Tensor& tensor) {
      const std::string label = "gradient by " + std::string(name);
      Bound& bound = bounds.try_emplace(label, label, e.lse_type()).first->second;
      if (loosely_) bound.loosen(oracle.largest_score);
      const auto right = oracle.by_tensor.find(name), rough = plain.by_tensor.find(name);
      const bool any = right != oracle.by_tensor.end();
      size_t n = 0;
      tensor.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
        bound.add(tensor.get(a, b, c, d), any ? rough->second[n] : 0, any ? right->second[n] : 0);
        ++n;
      });
    });
  }
  /// Whether every gradient lies within the bound.
  ::testing::AssertionResult within_bound(const Example& e, const Slopes& got) const {
    Bounds bounds;
    add(e, got, bounds);
    return hold(bounds);
  }

 private:
  static double rounded(double x, DType type) {
    if (type == DType::kFloat16) return double(float16(float(x)));
    if (type == DType::kBFloat16) return double(bfloat16(float(x)));
    return x;
  }
  bool loosely_ = false;
};

/// Whether the gradients of an example lie within the bound. On many draws together where one does not.
inline ::testing::AssertionResult slopes_within_bound(const Example& e, Sums sums = Sums::kExact) {
  Bounds bounds;
  return judged_on_draws(e, bounds, [&](const Example& drawn) {
    const Loss by(drawn);
    const Left left(drawn);
    Slopes got(drawn, Placement::kContiguous);
    backward(drawn.attention, drawn.inputs(), left.upstream(by, sums), got.views());
    ExpectedSlopes(drawn, by, left, sums).add(drawn, got, bounds);
  });
}

}  // namespace qkv::testing
