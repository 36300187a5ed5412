// A hidden pair has no influence, whatever bits lie there; what is visible and not a number spoils its rows and no other.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/options.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

enum class Part { kKey, kValue };

/// Writes x into column j of the keys or of the values of every entry and head; columns of packed tensors are rows of the whole.
void spoil(Example& e, Part part, int64_t j, double x) {
  Tensor& t = part == Part::kKey ? e.key : e.value;
  const Extents& n = t.layout().shape;
  if (e.shape.packed) {
    for (int64_t h = 0; h < n[1]; ++h)
      for (int64_t d = 0; d < n[2]; ++d) t.set(x, j, h, d);
    return;
  }
  for (int64_t b = 0; b < n[0]; ++b)
    for (int64_t h = 0; h < n[1]; ++h)
      for (int64_t d = 0; d < n[3]; ++d) t.set(x, b, h, j, d);
}

bool same(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// Spoils one column and looks at every row: those that do not see it keep all their bits. A NaN makes the others NaN.
void expect_only_seeing_rows_change(const Example& clean, Part part, int64_t column, double x) {
  Example spoilt = clean;
  spoil(spoilt, part, column, x);
  const Result before = run(clean), after = run(spoilt);
  const Inputs in = clean.inputs();
  const reference::Problem problem(clean.attention, in);
  each_query(clean, problem, [&](int64_t b, int64_t h, int64_t i, int64_t n) {
    const int64_t first = clean.shape.packed ? int64_t(clean.cumulative_key_lengths.get(b)) : 0;
    const int64_t j = column - first;
    const bool seen = j >= 0 && j < problem.columns(b) && problem.sees(problem.site(b, h, i, j));
    const double lse[] = {element(clean, before.lse, b, h, n), element(clean, after.lse, b, h, n)};
    if (seen && !std::isnan(x)) return;
    if (seen && part == Part::kKey && clean.shape.head_dim > 0)
      ASSERT_TRUE(std::isnan(lse[1])) << b << " " << h << " " << i;
    else
      ASSERT_TRUE(same(lse[0], lse[1])) << "lse " << b << " " << h << " " << i << ": " << lse[0] << " became "
                                        << lse[1];
    for (int64_t d = 0; d < clean.shape.value_dim; ++d) {
      const double old = element(clean, before.out, b, h, n, d), now = element(clean, after.out, b, h, n, d);
      if (seen) ASSERT_TRUE(std::isnan(now)) << b << " " << h << " " << i << ": " << now;
      else
        ASSERT_TRUE(same(old, now)) << "out " << b << " " << h << " " << i << " " << d << ": " << old << " became "
                                    << now;
    }
  });
}

void expect_hidden_has_no_influence(const Case& c) {
  const Example e(c);
  const int64_t columns = c.packed ? e.key.layout().shape[0] : c.keys;
  for (const int64_t column : {int64_t{0}, columns / 3, columns / 2, columns - 1})
    for (const Part part : {Part::kKey, Part::kValue})
      for (const double x : {kNan, kInf, -kInf}) {
        std::ostringstream trace;
        trace << (part == Part::kKey ? "key " : "value ") << column << " is " << x << ", " << c;
        SCOPED_TRACE(trace.str());
        expect_only_seeing_rows_change(e, part, column, x);
      }
}

TEST(HiddenPairs, HaveNoInfluenceUnderAnyOption) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    Case c{.dtype = kFloatTypes[turn % 4],
           .batch = 2,
           .key_heads = 1,
           .group = 2,
           .queries = 37,
           .keys = 141,
           .head_dim = 9,
           .value_dim = 10,
           .seed = ++turn};
    option.set(c);
    SCOPED_TRACE(option.name);
    expect_hidden_has_no_influence(c);
  }
}

TEST(HiddenPairs, HaveNoInfluenceWhenQueriesAreFew) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    Case c{.dtype = kFloatTypes[turn % 4],
           .batch = 2,
           .group = 2,
           .queries = int(1 + turn % 3),
           .keys = 141,
           .head_dim = 9,
           .value_dim = 10,
           .align = Align::kBottomRight,
           .seed = ++turn};
    option.set(c);
    SCOPED_TRACE(option.name);
    expect_hidden_has_no_influence(c);
  }
}

TEST(HiddenPairs, HaveNoInfluenceOnAnyInstructionSet) {
  each_instruction_set([](const std::string& set) {
    SCOPED_TRACE(set);
    for (const DType type : kFloatTypes)
      for (const int queries : {2, 30})
        expect_hidden_has_no_influence({.dtype = type,
                                        .queries = queries,
                                        .keys = 131,
                                        .head_dim = 7,
                                        .value_dim = 9,
                                        .causal = true,
                                        .align = Align::kBottomRight,
                                        .keep_mask = true});
  });
}

TEST(HiddenPairs, QueriesThatAreNotNumbersSpoilOnlyTheirRow) {
  for (const DType type : kFloatTypes) {
    const Case c{.dtype = type, .group = 2, .queries = 30, .keys = 40, .head_dim = 5, .value_dim = 3, .causal = true};
    const Example clean(c);
    Example spoilt = clean;
    spoilt.query.set(kNan, 0, 1, 17, 2);
    const Result before = run(clean), after = run(spoilt);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 30; ++i)
        for (int64_t d = 0; d < 3; ++d) {
          if (h == 1 && i == 17) EXPECT_TRUE(std::isnan(after.out.get(0, h, i, d)));
          else EXPECT_TRUE(same(before.out.get(0, h, i, d), after.out.get(0, h, i, d))) << h << " " << i << " " << d;
        }
  }
}

TEST(HiddenPairs, ANumberPastTheLargestMakesARowNaNAndNoInfinity) {
  // A score of +inf that is visible: exp(inf - inf). Documented, so that nobody takes 0 or a choice of that key for the answer.
  Case c{.queries = 3, .keys = 5, .head_dim = 1, .value_dim = 2};
  Example e(c);
  e.query.fill(1);
  e.key.set(kInf, 0, 0, 2, 0);
  const Result r = run(e);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(r.out.get(0, 0, i, 0)));
    EXPECT_TRUE(std::isnan(r.lse.get(0, 0, i)));
  }
}

TEST(HiddenPairs, OnlyMinusInfinityHides) {
  // The lowest finite float is an ordinary bias: where a whole row has it, the row is an ordinary mean.
  Example e(Case{.queries = 1, .keys = 2, .head_dim = 1, .value_dim = 1, .bias = true, .seed = 3});
  e.query.fill(0);
  e.value.set(2, 0, 0, 0, 0), e.value.set(4, 0, 0, 1, 0);
  e.bias.fill(std::numeric_limits<float>::lowest());
  EXPECT_EQ(run(e).out.get(0, 0, 0, 0), 3);
  EXPECT_EQ(run(e).lse.get(0, 0, 0), double(std::numeric_limits<float>::lowest()));
  e.bias.fill(-kInf);
  EXPECT_EQ(run(e).out.get(0, 0, 0, 0), 0);
  EXPECT_EQ(run(e).lse.get(0, 0, 0), -kInf);
}

/// Runs with every tensor between unreadable pages and expects the bits of the ordinary run.
void expect_nothing_outside_is_touched(const Case& c, Guard guard) {
  const Example e(c);
  const Result wanted = run(e);
  Inputs in = e.inputs();
  std::vector<std::unique_ptr<GuardedTensor>> guarded;
  auto move = [&](const Tensor& t, auto& view) {
    if (!t || t.size() == 0) return;
    guarded.push_back(std::make_unique<GuardedTensor>(t, guard));
    using Wanted = std::remove_cvref_t<decltype(view)>;
    if constexpr (std::is_same_v<Wanted, View<const void>>) view = guarded.back()->view();
    else view = guarded.back()->view().as<const int32_t>();
  };
  move(e.query, in.query), move(e.key, in.key), move(e.value, in.value);
  move(e.keep_mask, in.keep_mask), move(e.ignore_mask, in.ignore_mask), move(e.bias, in.bias);
  move(e.alibi_slopes, in.alibi_slopes), move(e.sinks, in.sinks);
  move(e.query_documents, in.query_documents), move(e.key_documents, in.key_documents);
  move(e.key_lengths, in.key_lengths), move(e.query_offset, in.query_offset), move(e.key_start, in.key_start);
  move(e.cumulative_query_lengths, in.cumulative_query_lengths),
      move(e.cumulative_key_lengths, in.cumulative_key_lengths);
  const GuardedTensor out(e.out(), guard), lse(e.lse(), guard);
  forward(e.attention, in, {.out = out.view(), .lse = lse.view()});
  EXPECT_TRUE(same_bits(wanted.out.view(), out.view())) << c;
  EXPECT_TRUE(same_bits(wanted.lse.view(), lse.view())) << c;
}

TEST(GuardPages, NothingOutsideATensorIsTouched) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    for (const Guard guard : {Guard::kBehind, Guard::kBefore}) {
      for (const int queries : {1, 5, 29}) {
        Case c{.dtype = kFloatTypes[turn % 4],
               .batch = 2,
               .queries = queries,
               .keys = int(33 + turn % 9),
               .head_dim = int(1 + turn % 19),
               .value_dim = int(1 + turn % 13),
               .seed = turn + 1};
        option.set(c);
        SCOPED_TRACE(option.name);
        expect_nothing_outside_is_touched(c, guard);
        ++turn;
      }
    }
  }
}

TEST(GuardPages, NothingOutsideATensorIsTouchedOnAnyInstructionSet) {
  each_instruction_set([](const std::string& set) {
    SCOPED_TRACE(set);
    unsigned turn = 0;
    for (const DType type : kFloatTypes)
      for (const int head_dim : {1, 3, 8, 15, 16, 17, 31, 33})
        for (const int queries : {1, 2, 7, 26}) {
          const Case c{.dtype = type,
                       .queries = queries,
                       .keys = int(17 + ++turn % 20),
                       .head_dim = head_dim,
                       .value_dim = 34 - head_dim};
          expect_nothing_outside_is_touched(c, Guard::kBehind);
        }
  });
}

TEST(GuardPages, KeysPastTheirLengthAreNeverTouched) {
  // Keys lie as {S, H, D}: rows past the length are the end of the memory, and they are not there.
  for (const DType type : kFloatTypes) {
    for (const int length : {0, 1, 7, 64, 127, 129}) {
      for (const int queries : {1, 3, 40}) {
        Example e(Case{.dtype = type,
                       .key_heads = 2,
                       .group = 2,
                       .queries = queries,
                       .keys = 200,
                       .head_dim = 7,
                       .value_dim = 5,
                       .key_lengths = true});
        e.key_lengths = int32s({double(length)});
        const Result wanted = run(e);
        const auto sequence_first = [](const Tensor& t) {  // {1, H, S, D} to {S, H, D}
          const Extents& n = t.layout().shape;
          return Tensor(t.type(), {n[2], n[1], n[3]}).fill([&](int64_t j, int64_t h, int64_t d, int64_t) {
            return t.get(0, h, j, d);
          });
        };
        const GuardedTensor keys(sequence_first(e.key), Guard::kBehind, length),
            values(sequence_first(e.value), Guard::kBehind, length);
        const auto as_batch = [](const View<const void>& v) {
          const int64_t shape[] = {1, v.shape[1], v.shape[0], v.shape[2]},
                        strides[] = {0, v.strides[1], v.strides[0], v.strides[2]};
          return View<const void>(v.data, v.dtype, Layout(shape, strides));
        };
        Inputs in = e.inputs();
        in.key = as_batch(keys.view()), in.value = as_batch(values.view());
        Tensor out = e.out(), lse = e.lse(), weights = e.matrix(), raw = e.matrix();
        forward(e.attention, in,
                {.out = out.view(), .lse = lse.view(), .weights = weights.view(), .raw_scores = raw.view()});
        EXPECT_TRUE(same_bits(wanted, Result{out, lse})) << e.shape << ", length " << length;
      }
    }
  }
}

}  // namespace
}  // namespace qkv::testing
