// Comparing tensors: bit by bit, and with the oracle within the error bound.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <sstream>

#include "reference/plain.h"
#include "tests/support/case.h"

namespace qkv::testing {

inline ::testing::AssertionResult failure(const std::string& text) { return ::testing::AssertionFailure() << text; }

/// Whether two tensors of one type and shape hold the same bits, wherever they lie. -0 is not 0; every NaN equals itself.
inline ::testing::AssertionResult same_bits(View<const void> a, View<const void> b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return failure("shapes " + shape_text(a) + " and " + shape_text(b));
  const size_t bytes = size_of(a.dtype);
  int64_t differ = 0;
  std::ostringstream first;
  auto value = [](const View<const void>& v, auto... i) {
    Parameter p{"x"};
    p.view = v;
    return p.get<double>(i...);
  };
  for (int64_t i = 0; i < a.shape[0]; ++i)
    for (int64_t j = 0; j < a.shape[1]; ++j)
      for (int64_t k = 0; k < a.shape[2]; ++k)
        for (int64_t l = 0; l < a.shape[3]; ++l) {
          const auto* x = static_cast<const char*>(a.data) + a.offset(i, j, k, l) * int64_t(bytes);
          const auto* y = static_cast<const char*>(b.data) + b.offset(i, j, k, l) * int64_t(bytes);
          if (std::memcmp(x, y, bytes) == 0) continue;
          if (differ++ > 0) continue;
          first.precision(17);
          first << "[" << i << ", " << j << ", " << k << ", " << l << "]: " << value(a, i, j, k, l) << " and "
                << value(b, i, j, k, l);
        }
  if (differ == 0) return ::testing::AssertionSuccess();
  return failure(std::to_string(differ) + " of " + std::to_string(a.size()) + " elements differ, first " + first.str());
}
inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) { return same_bits(a.view(), b.view()); }
inline ::testing::AssertionResult same_bits(const Result& a, const Result& b) {
  if (const auto out = same_bits(a.out, b.out); !out) return failure("out: " + std::string(out.message()));
  if (const auto lse = same_bits(a.lse, b.lse); !lse) return failure("lse: " + std::string(lse.message()));
  return ::testing::AssertionSuccess();
}

inline double epsilon(DType type) {
  switch (type) {
    case DType::kFloat64: return std::numeric_limits<double>::epsilon();
    case DType::kFloat16: return 0x1p-10;
    case DType::kBFloat16: return 0x1p-7;
    default: return std::numeric_limits<float>::epsilon();
  }
}

/// The error bound of one tensor, gathered element by element:
///   max|x - ref| <= 2 max|plain - ref| + 8 eps max|ref|;  infinities, NaN and exact zeros agree exactly.
class Bound {
 public:
  Bound(std::string label, DType type) : label_(std::move(label)), epsilon_(epsilon(type)) {}

  void add(double x, double plain, double ref) {
    ++count_;
    if (std::isnan(ref) || std::isinf(ref) || ref == 0) {
      if (!(x == ref || (std::isnan(x) && std::isnan(ref)))) complain(x, ref);
      return;
    }
    if (!std::isfinite(x)) return complain(x, ref);
    if (std::abs(x - ref) > error_) worst_x_ = x, worst_ref_ = ref;
    error_ = std::max(error_, std::abs(x - ref));
    if (std::isfinite(plain)) plain_error_ = std::max(plain_error_, std::abs(plain - ref));
    largest_ = std::max(largest_, std::abs(ref));
  }
  /// Of weights from lse alone, with scores up to this: 8 eps (1 + score).
  void loosen(double score) { slack_ = std::max(slack_, 8 * (1 + score)); }
  double limit() const { return 2 * plain_error_ + slack_ * epsilon_ * largest_; }
  /// Whether everything that must be exact is.
  bool exact() const { return wrong_ == 0; }
  ::testing::AssertionResult holds() const {
    std::ostringstream text;
    text.precision(12);
    text << label_ << ": ";
    if (wrong_ > 0) {
      text << wrong_ << " of " << count_ << " elements should be exact but are not, first " << first_wrong_;
    } else if (error_ <= limit()) {
      return ::testing::AssertionSuccess();
    } else {
      text << "error " << error_ << " (" << worst_x_ << " for " << worst_ref_ << ") above " << limit() << " = 2 * "
           << plain_error_ << " + " << slack_ << " * " << epsilon_ << " * " << largest_;
    }
    return failure(text.str());
  }

 private:
  void complain(double x, double ref) {
    if (wrong_++ > 0) return;
    std::ostringstream text;
    text << x << " for " << ref;
    first_wrong_ = text.str();
  }
  std::string label_, first_wrong_;
  double epsilon_, slack_ = 8, error_ = 0, plain_error_ = 0, largest_ = 0, worst_x_ = 0, worst_ref_ = 0;
  int64_t count_ = 0, wrong_ = 0;
};

/// f(b, h, i, n) for every query: n is its row in the tensors, which differs from i in packed batches only.
template <class F> void each_query(const Example& e, const reference::Problem& problem, F f) {
  for (int64_t b = 0; b < problem.batches(); ++b) {
    const int64_t first = e.shape.packed ? int64_t(e.cumulative_query_lengths.get(b)) : 0;
    for (int64_t h = 0; h < problem.query_heads(); ++h)
      for (int64_t i = 0; i < problem.queries(b); ++i) f(b, h, i, first + i);
  }
}

/// An element of a tensor like `out` or `lse`, packed or not.
inline double element(const Example& e, const Tensor& t, int64_t b, int64_t h, int64_t n, int64_t d = 0) {
  return e.shape.packed ? t.get(n, h, d) : t.get(b, h, n, d);
}

/// What the oracle and the plain evaluation say of a case, row by row: made once, compared with many results.
struct Expected {
  struct Row {
    int64_t b, h, i, n;
    reference::RowAnswer oracle, plain;
  };
  std::vector<Row> rows;

  /// Every `step`-th query.
  explicit Expected(const Example& e, int step = 1) {
    const Inputs in = e.inputs();
    const reference::Problem problem(e.attention, in);
    int64_t count = 0;
    each_query(e, problem, [&](int64_t b, int64_t h, int64_t i, int64_t n) {
      if (count++ % step != 0) return;
      rows.push_back(
          {b, h, i, n, reference::oracle(problem, b, h, i), reference::plain(problem, e.shape.dtype, b, h, i)});
    });
  }
  /// Adds out and lse of a run to their bounds.
  void add(const Example& e, const Result& got, Bound& out, Bound& lse) const {
    for (const Row& r : rows) {
      for (int64_t d = 0; d < e.shape.value_dim; ++d)
        out.add(element(e, got.out, r.b, r.h, r.n, d), r.plain.out[size_t(d)], r.oracle.out[size_t(d)]);
      lse.add(element(e, got.lse, r.b, r.h, r.n), r.plain.lse, r.oracle.lse);
    }
  }
  /// Whether out and lse lie within the bound.
  ::testing::AssertionResult within_bound(const Example& e, const Result& got) const {
    Bound out("out", e.shape.dtype), lse("lse", e.lse_type());
    add(e, got, out, lse);
    if (const auto ok = out.holds(); !ok) return ok;
    return lse.holds();
  }
};

/// The bounds of one result, by the name of the tensor.
using Bounds = std::map<std::string, Bound>;
inline ::testing::AssertionResult hold(const Bounds& bounds) {
  for (const auto& [name, bound] : bounds)
    if (const auto ok = bound.holds(); !ok) return ok;
  return ::testing::AssertionSuccess();
}

/// Whether `add`, which runs an example and adds the results to `bounds`, stays within them. Of a few rows the plain evaluation is
/// sometimes exact by luck, and then nobody can stay within twice its error. So an example that does not is drawn again, and
/// judged on 16 draws as if they were one tensor, or on 256: the largest of few numbers says little. A fault that is more than
/// luck shows in all of them. What must be exact is judged at once.
template <class F>::testing::AssertionResult judged_on_draws(const Example& e, Bounds& bounds, F add) {
  for (unsigned draw = 1; draw <= 256; ++draw) {
    if (draw == 1) {
      add(e);
    } else {
      Case other = e.shape;
      other.seed += 12000 * (draw - 1);  // a multiple of 12 leaves the choices that depend on the seed as they are
      Example again(other);
      again.attention = e.attention;
      add(again);
    }
    for (const auto& [name, bound] : bounds)
      if (!bound.exact()) return bound.holds();
    if ((draw == 1 || draw == 16) && hold(bounds)) return ::testing::AssertionSuccess();
  }
  return hold(bounds);
}

/// Whether a run of the example lies within the bound, on many draws together where it does not alone.
inline ::testing::AssertionResult runs_within_bound(const Example& e, const Expected& expected) {
  Bounds bounds;
  return judged_on_draws(e, bounds, [&](const Example& drawn) {
    Bound& out = bounds.try_emplace("out", "out", e.shape.dtype).first->second;
    Bound& lse = bounds.try_emplace("lse", "lse", e.lse_type()).first->second;
    if (&drawn == &e) expected.add(e, run(e), out, lse);
    else Expected(drawn).add(drawn, run(drawn), out, lse);
  });
}

inline ::testing::AssertionResult within_bound(const Example& e, const Result& got, int step = 1) {
  return Expected(e, step).within_bound(e, got);
}

}  // namespace qkv::testing
