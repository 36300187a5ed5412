// The gradients of merge_partials(): against differences and the equation, and through the parts of an attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "qkv/merge.h"
#include "tests/support/backward.h"
#include "tests/support/message.h"
#include "tests/support/options.h"

namespace qkv::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr size_t kParts = 3;

/// Parts with random numbers, some of which saw nothing, and what comes down to their merge.
struct Merging {
  std::vector<int64_t> shape, rows;
  DType type, sum_type;
  std::vector<Tensor> out, lse;
  Tensor sinks, dout, dlse;

  Merging(DType t, std::vector<int64_t> s, Placement placement = Placement::kContiguous)
      : shape(std::move(s)),
        rows(shape.begin(), shape.end() - 1),
        type(t),
        sum_type(t == DType::kFloat64 ? t : DType::kFloat32) {
    for (uint64_t n = 0; n < kParts; ++n) {
      out.push_back(Tensor(type, shape, placement).normal(n + 1));
      lse.push_back(Tensor(sum_type, rows, placement).normal(n + 11, 2));
    }
    lse[1].each([&](int64_t a, int64_t b, int64_t c, int64_t) {
      if ((a + b + c) % 4 == 0) lse[1].set(-kInf, a, b, c);
    });
    sinks = Tensor(sum_type, {shape[1]}).normal(21);
    dout = Tensor(type, shape, placement).normal(22);
    dlse = Tensor(sum_type, rows, placement).normal(23);
  }
  std::vector<Partial> parts() const {
    std::vector<Partial> p;
    for (size_t n = 0; n < kParts; ++n) p.push_back({out[n].view(), lse[n].view()});
    return p;
  }
};

struct MergeSlopes {
  std::vector<Tensor> dout, dlse;
  Tensor dsinks;

  explicit MergeSlopes(const Merging& m, Placement placement = Placement::kContiguous)
      : dsinks(m.sum_type, {m.shape[1]}) {
    for (size_t n = 0; n < kParts; ++n) {
      dout.emplace_back(m.type, m.shape, placement);
      dlse.emplace_back(m.sum_type, m.rows, placement);
    }
  }
  std::vector<PartialGradient> parts() {
    std::vector<PartialGradient> p;
    for (size_t n = 0; n < kParts; ++n) p.push_back({dout[n].view(), dlse[n].view()});
    return p;
  }
  ::testing::AssertionResult same(const MergeSlopes& other) const {
    for (size_t n = 0; n < kParts; ++n) {
      if (const auto ok = same_bits(dout[n], other.dout[n]); !ok) return ok;
      if (const auto ok = same_bits(dlse[n], other.dlse[n]); !ok) return ok;
    }
    return same_bits(dsinks, other.dsinks);
  }
};

MergeSlopes merge_slopes(const Merging& m, const Call& call = {}, Placement placement = Placement::kContiguous) {
  MergeSlopes s(m, placement);
  merge_partials_backward(m.parts(), m.sinks.view(), m.dout.view(), m.dlse.view(),
                          {.parts = s.parts(), .dsinks = s.dsinks.view()}, call);
  return s;
}

using Row = std::array<int64_t, 3>;
double number(const Tensor& t, Row at, int64_t e) {
  return t.layout().rank == 3 ? t.get(at[0], at[1], e) : t.get(at[0], at[1], at[2], e);
}

/// The equation, row by row, computed in Real; f(n, row's index, w_n, dlse_n), then of the sink with n = kParts.
template <class Real, class F> void each_weight(const Merging& m, F f) {
  Tensor(DType::kBool, m.rows).each([&](int64_t a, int64_t b, int64_t c, int64_t) {
    Real score[kParts + 1], dot[kParts + 1] = {}, sum = 0, mean = 0;
    for (size_t n = 0; n < kParts; ++n) score[n] = Real(m.lse[n].get(a, b, c));
    score[kParts] = Real(m.sinks.get(b));
    const Real max = *std::max_element(score, score + kParts + 1);
    for (size_t n = 0; n < kParts; ++n)
      for (int64_t e = 0; e < m.shape.back(); ++e)
        dot[n] += Real(number(m.dout, {a, b, c}, e)) * Real(number(m.out[n], {a, b, c}, e));
    for (Real& s : score) sum += s = std::exp(s - max);
    for (size_t n = 0; n <= kParts; ++n) mean += score[n] / sum * dot[n];
    for (size_t n = 0; n <= kParts; ++n) {
      const Real w = score[n] / sum;
      f(n, Row{a, b, c}, w, w * (dot[n] - mean + Real(m.dlse.get(a, b, c))));
    }
  });
}

/// What each_weight() says of one of the two arithmetics, in the order in which tensors are walked.
struct Told {
  std::vector<double> dout[kParts], dlse[kParts], dsinks;
  template <class Real> static Told of(const Merging& m) {
    Told t;
    std::vector<Real> sinks(size_t(m.shape[1]));
    each_weight<Real>(m, [&](size_t n, Row at, Real w, Real by_lse) {
      if (n == kParts) {
        sinks[size_t(at[1])] += by_lse;
        return;
      }
      t.dlse[n].push_back(double(by_lse));
      for (int64_t e = 0; e < m.shape.back(); ++e) t.dout[n].push_back(double(w * Real(number(m.dout, at, e))));
    });
    t.dsinks.assign(sinks.begin(), sinks.end());
    return t;
  }
};

void expect_within_bound(const char* name, const Tensor& got, const std::vector<double>& right,
                         const std::vector<double>& rough) {
  Bound bound(name, got.type());
  size_t n = 0;
  got.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    Tensor once(got.type(), {1});
    once.set(rough[n], 0);  // rounded to the type
    bound.add(got.get(a, b, c, d), once.get(0), right[n]);
    ++n;
  });
  EXPECT_TRUE(bound.holds());
}

TEST(MergeGradients, LieWithinTheBoundInEveryTypeAndPlacement) {
  for (const DType type : kFloatTypes)
    for (const bool packed : {false, true})
      for (const Placement placement : kPlacements) {
        SCOPED_TRACE(std::string(name(type)) + ", " + name(placement) + (packed ? ", packed" : ""));
        const Merging m(type, packed ? std::vector<int64_t>{70, 3, 17} : std::vector<int64_t>{2, 3, 35, 17}, placement);
        const MergeSlopes got = merge_slopes(m, {}, placement);
        const Told right = Told::of<long double>(m);
        const Told rough = type == DType::kFloat64 ? Told::of<double>(m) : Told::of<float>(m);
        for (size_t n = 0; n < kParts; ++n) {
          expect_within_bound("dout", got.dout[n], right.dout[n], rough.dout[n]);
          expect_within_bound("dlse", got.dlse[n], right.dlse[n], rough.dlse[n]);
        }
        expect_within_bound("dsinks", got.dsinks, right.dsinks, rough.dsinks);
      }
}

double loss_of(const Merging& m) {
  Tensor out(m.type, m.shape), lse(m.sum_type, m.rows);
  merge_partials(m.parts(), m.sinks.view(), out.view(), lse.view());
  double sum = 0;
  out.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { sum += out.get(a, b, c, d) * m.dout.get(a, b, c, d); });
  lse.each([&](int64_t a, int64_t b, int64_t c, int64_t) { sum += lse.get(a, b, c) * m.dlse.get(a, b, c); });
  return sum;
}

TEST(MergeGradients, AgreeWithCentralDifferences) {
  Merging m(DType::kFloat64, {2, 2, 3, 3});
  const MergeSlopes got = merge_slopes(m);
  const auto expect_slope = [&](const char* name, Tensor& tensor, const Tensor& gradient) {
    tensor.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
      const double x = tensor.get(a, b, c, d);
      if (x == -kInf) {
        EXPECT_EQ(gradient.get(a, b, c, d), 0);
        return;
      }
      constexpr double kStep = 0x1p-12;
      tensor.set(x + kStep, a, b, c, d);
      const double high = loss_of(m);
      tensor.set(x - kStep, a, b, c, d);
      const double low = loss_of(m);
      tensor.set(x, a, b, c, d);
      ASSERT_NEAR(gradient.get(a, b, c, d), (high - low) / (2 * kStep), 1e-6) << name << a << b << c << d;
    });
  };
  for (size_t n = 0; n < kParts; ++n) {
    expect_slope("out", m.out[n], got.dout[n]);
    expect_slope("lse", m.lse[n], got.dlse[n]);
  }
  expect_slope("sinks", m.sinks, got.dsinks);
}

TEST(MergeGradients, APartThatSawNothingGetsZerosWhateverItHolds) {
  Merging m(DType::kFloat32, {1, 2, 5, 3});
  const MergeSlopes clean = merge_slopes(m);
  m.lse[1].each([&](int64_t a, int64_t b, int64_t c, int64_t) {
    for (int64_t e = 0; m.lse[1].get(a, b, c) == -kInf && e < 3; ++e) m.out[1].set(NAN, a, b, c, e);
  });
  EXPECT_TRUE(clean.same(merge_slopes(m)));

  for (Tensor& lse : m.lse) lse.set(-kInf, 0, 0, 0);
  for (int64_t e = 0; e < 3; ++e) m.dout.set(NAN, 0, 0, 0, e);
  const MergeSlopes got = merge_slopes(m);
  for (size_t n = 0; n < kParts; ++n) {
    EXPECT_EQ(got.dlse[n].get(0), 0);
    for (int64_t e = 0; e < 3; ++e) EXPECT_EQ(got.dout[n].get(0, 0, 0, e), 0);
  }
  EXPECT_TRUE(std::isfinite(got.dsinks.get(0))) << "all weight is the sink's, and its value is 0";
}

TEST(MergeGradients, HaveTheSameBitsForAnyThreadsAndPlacement) {
  const Merging m(DType::kFloat32, {3, 4, 50, 9});
  const MergeSlopes once = merge_slopes(m);
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(once.same(merge_slopes(m, {.executor = &pool}))) << threads;
  }
  for (const Placement p : kPlacements)
    EXPECT_TRUE(once.same(merge_slopes(Merging(DType::kFloat32, m.shape, p), {}, p))) << name(p);
}

TEST(MergeGradients, AreComputedAsFarAsTheyAreAskedFor) {
  const Merging m(DType::kFloat32, {1, 2, 5, 3});
  const MergeSlopes all = merge_slopes(m);
  MergeSlopes some(m);
  const std::vector<PartialGradient> first{{some.dout[0].view(), {}}, {}, {{}, some.dlse[2].view()}};
  merge_partials_backward(m.parts(), m.sinks.view(), m.dout.view(), m.dlse.view(), {.parts = first});
  EXPECT_TRUE(same_bits(all.dout[0], some.dout[0]));
  EXPECT_TRUE(same_bits(all.dlse[2], some.dlse[2]));
  merge_partials_backward(m.parts(), m.sinks.view(), m.dout.view(), m.dlse.view(), {.dsinks = some.dsinks.view()});
  EXPECT_TRUE(same_bits(all.dsinks, some.dsinks));

  Merging zero = m;
  zero.dlse.fill(0);
  MergeSlopes without(m);
  merge_partials_backward(m.parts(), m.sinks.view(), m.dout.view(), {},
                          {.parts = without.parts(), .dsinks = without.dsinks.view()});
  EXPECT_TRUE(without.same(merge_slopes(zero))) << "an absent dlse is 0";
}

TEST(MergeGradients, SayWhatIsWrong) {
  using ::testing::HasSubstr;
  const Merging m(DType::kFloat32, {1, 2, 5, 3});
  const auto message = [&](auto change) {
    MergeSlopes s(m);
    auto parts = s.parts();
    View<const void> sinks = m.sinks.view(), dout = m.dout.view(), dlse = m.dlse.view();
    MergeGradients to{.dsinks = s.dsinks.view()};
    change(parts, sinks, dout, dlse);
    to.parts = parts;
    return message_of<ArgumentError>([&] { merge_partials_backward(m.parts(), sinks, dout, dlse, to); });
  };
  EXPECT_EQ(message([](auto&, auto&, auto& dout, auto&) { dout = {}; }),
            "merge_partials_backward: dout is missing; pass a view");
  EXPECT_EQ(message([](auto&, auto& sinks, auto&, auto&) { sinks = {}; }),
            "merge_partials_backward: dsinks is given, but there are no sinks; leave it out");
  EXPECT_EQ(
      message([](auto&, auto&, auto& dout, auto& dlse) { dlse = dout; }),
      "merge_partials_backward: dlse has shape {1, 2, 5, 3}, expected {1, 2, 5}, that of dout without its last axis");
  EXPECT_EQ(
      message([](auto& parts, auto&, auto&, auto&) { parts[1].dout = parts[1].dlse; }),
      "merge_partials_backward: parts[1].dout has shape {1, 2, 5}, expected {1, 2, 5, 3}, that of dout; all parts "
      "have the same queries");
  EXPECT_THAT(message([](auto& parts, auto&, auto&, auto&) { parts[2].dlse.dtype = DType::kFloat16; }),
              HasSubstr("parts[2].dlse has type float16, expected float32 or float64"));
  EXPECT_THAT(message([](auto& parts, auto&, auto&, auto&) { parts.pop_back(); }),
              HasSubstr("there are gradients of 2 parts, expected 3, one a part"));
}

/// The inputs of an example with some of its keys, without sinks.
Inputs part_of(const Example& e, int64_t first, int64_t last, View<const int32_t> key_start) {
  Inputs in = e.inputs();
  in.sinks = {};
  in.key = slice(in.key, 2, first, last), in.value = slice(in.value, 2, first, last);
  in.bias = slice(in.bias, 3, first, last);
  in.key_start = key_start;
  return in;
}

/// The attention of an example over its keys in parts, with the sinks in the merge: forward, merge, and back.
Slopes slopes_in_parts(const Example& e, const Loss& by, const std::vector<double>& cuts, Sums sums) {
  const Tensor starts = int32s(cuts);
  const Attention attention = Attention(e.attention).weights(Softmax{});
  const size_t parts = cuts.size() - 1;
  std::vector<Inputs> inputs;
  std::vector<Left> left;
  std::vector<Partial> partials;
  std::vector<Loss> by_part(parts, by);
  std::vector<PartialGradient> gradients;
  for (size_t n = 0; n < parts; ++n) {
    const auto start = slice(starts.as<int32_t>(), 0, int64_t(n), int64_t(n) + 1);
    inputs.push_back(part_of(e, int64_t(cuts[n]), int64_t(cuts[n + 1]), start));
    left.emplace_back(e, attention, inputs[n]);
    gradients.push_back({by_part[n].dout.view(), by_part[n].dlse.view()});
  }
  for (const Left& l : left) partials.push_back({l.out.view(), l.lse.view()});
  Slopes s(e, Placement::kContiguous);
  merge_partials_backward(partials, e.sinks.view(), by.dout.view(), by.dlse.view(),
                          {.parts = gradients, .dsinks = s.dsinks.view()});
  for (Tensor* sum : {&s.dquery, &s.dkey, &s.dvalue, &s.dbias, &s.dalibi_slopes}) sum->fill(0);
  for (size_t n = 0; n < parts; ++n) {
    const auto first = int64_t(cuts[n]), last = int64_t(cuts[n + 1]);
    backward(attention, inputs[n], left[n].upstream(by_part[n], sums),
             {.dquery = s.dquery.view(),
              .dkey = slice(s.dkey.view(), 2, first, last),
              .dvalue = slice(s.dvalue.view(), 2, first, last),
              .dbias = slice(s.dbias.view(), 3, first, last),
              .dalibi_slopes = s.dalibi_slopes.view(),
              .add = true});
  }
  return s;
}

TEST(MergeGradients, ThroughPartsOfTheKeysAreThoseOfTheWholeAttention) {
  for (const DType type : {DType::kFloat32, DType::kFloat64})
    for (const Sums sums : {Sums::kExact, Sums::kOnlyLse}) {
      SCOPED_TRACE(std::string(name(type)) + (sums == Sums::kExact ? "" : ", lse alone"));
      Case c{.dtype = type,
             .batch = 2,
             .key_heads = 2,
             .group = 2,
             .queries = 60,
             .keys = 97,
             .head_dim = 8,
             .value_dim = 7,
             .causal = true,
             .alibi = true,
             .bias = true,
             .sinks = true};
      const Example e(c);
      const Loss by(e);
      const ExpectedSlopes expected(e, by, Left(e));
      // The third part is empty, the last one is seen by no query.
      EXPECT_TRUE(expected.within_bound(e, slopes_in_parts(e, by, {0, 17, 50, 50, 60, 97}, sums)));
      EXPECT_TRUE(expected.within_bound(e, slopes_in_parts(e, by, {0, 97}, sums)));
    }
}

}  // namespace
}  // namespace qkv::testing
