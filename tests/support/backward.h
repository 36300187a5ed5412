// What backward() gave, compared bit by bit and with the oracle.
#pragma once
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
    for (const auto& [name, tensor, right, rough] : {std::tuple{"dquery", &got.dquery, &oracle.dquery, &plain.dquery},
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
