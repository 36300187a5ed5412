// What must hold of any attention, whatever the numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/compare.h"
#include "tests/support/options.h"

namespace qkv::testing {
namespace {

TEST(Properties, OutputsLieBetweenTheSmallestAndTheLargestVisibleValue) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    Case c{.dtype = kFloatTypes[turn % 4],
           .batch = 2,
           .queries = 40,
           .keys = 70,
           .head_dim = 6,
           .value_dim = 3,
           .seed = ++turn};
    option.set(c);
    const Example e(c);
    const Result r = run(e);
    const Inputs in = e.inputs();
    const reference::Problem p(e.attention, in);
    each_query(e, p, [&](int64_t b, int64_t h, int64_t i, int64_t n) {
      const bool keyless = c.sinks || c.zero_key;  // they count as a value of 0
      std::vector<double> low(size_t(c.value_dim), keyless ? 0 : 1e30), high(low.size(), keyless ? 0 : -1e30);
      for (int64_t j = 0; j < p.columns(b); ++j) {
        if (!p.sees(p.site(b, h, i, j))) continue;
        const std::vector<double> value = p.value(b, h, j);
        for (size_t d = 0; d < value.size(); ++d)
          low[d] = std::min(low[d], value[d]), high[d] = std::max(high[d], value[d]);
      }
      for (size_t d = 0; d < low.size(); ++d) {
        if (low[d] > high[d]) continue;
        const double x = element(e, r.out, b, h, n, int64_t(d));
        const double slack = 2 * epsilon(c.dtype) * std::max(std::abs(low[d]), std::abs(high[d]));
        EXPECT_GE(x, low[d] - slack) << option.name;
        EXPECT_LE(x, high[d] + slack) << option.name;
      }
    });
  }
}

std::vector<int64_t> shuffled(int n, unsigned seed) {
  std::vector<int64_t> order(size_t(n), 0);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}
/// {B, H, L, D} with its third axis in another order.
Tensor reordered(const Tensor& t, const std::vector<int64_t>& order) {
  Tensor copy = t;
  return copy.fill([&](int64_t b, int64_t h, int64_t i, int64_t d) { return t.get(b, h, order[size_t(i)], d); });
}

TEST(Properties, PermutingKeysWithTheirValuesChangesNothing) {
  for (const DType type : kFloatTypes) {
    const Example e(Case{.dtype = type, .group = 2, .queries = 30, .keys = 150, .head_dim = 8, .value_dim = 5});
    Example permuted = e;
    const auto order = shuffled(150, 5);
    permuted.key = reordered(e.key, order);
    permuted.value = reordered(e.value, order);
    EXPECT_TRUE(Expected(e).within_bound(permuted, run(permuted)));
  }
}

TEST(Properties, PermutingTheTokensOfSelfAttentionPermutesTheOutputs) {
  for (const DType type : kFloatTypes) {
    const Example e(Case{.dtype = type, .key_heads = 2, .queries = 60, .keys = 60, .head_dim = 8, .value_dim = 5});
    Example permuted = e;
    const auto order = shuffled(60, 6);
    for (const auto tensor : {&Example::query, &Example::key, &Example::value})
      permuted.*tensor = reordered(e.*tensor, order);
    Result r = run(permuted);
    std::vector<int64_t> back(60);
    for (size_t i = 0; i < 60; ++i) back[size_t(order[i])] = int64_t(i);
    r.out = reordered(r.out, back);
    Tensor lse = r.lse;
    r.lse.fill([&](int64_t b, int64_t h, int64_t i, int64_t) { return lse.get(b, h, back[size_t(i)]); });
    EXPECT_TRUE(Expected(e).within_bound(e, r));
  }
}

TEST(Properties, ALargerDivisorNeverLowersTheEntropy) {
  Example e(Case{.key_heads = 2,
                 .queries = 40,
                 .keys = 60,
                 .head_dim = 8,
                 .value_dim = 2,
                 .causal = true,
                 .align = Align::kBottomRight});
  Tensor before = e.narrow(DType::kFloat32).fill(0);
  for (const double divisor : {0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 1000.0}) {
    e.attention.scale(1 / divisor);
    Tensor entropy = e.narrow(DType::kFloat32), out = e.out();
    forward(e.attention, e.inputs(), {.out = out.view(), .rows = {.entropy = entropy.as<float>()}});
    entropy.each([&](int64_t b, int64_t h, int64_t i, int64_t) {
      EXPECT_GE(entropy.get(b, h, i), before.get(b, h, i) - 1e-5) << divisor << " " << h << " " << i;
    });
    before = entropy;
  }
}

TEST(Properties, AConstantAddedToTheScoresOfARowChangesNothing) {
  for (const DType type : kFloatTypes) {
    Example e(
        Case{.dtype = type, .queries = 30, .keys = 140, .head_dim = 8, .value_dim = 5, .bias = true, .mask_axes = 4});
    Example plain = e;
    plain.bias.fill(0);
    e.bias.fill([](int64_t, int64_t, int64_t i, int64_t) { return double(i % 7) - 3; });  // {1, 1, L, 1}
    const Result shifted = run(e), still = run(plain);
    Bound bound("out", type);
    for (const auto& row : Expected(plain).rows)
      for (int64_t d = 0; d < 5; ++d)
        bound.add(shifted.out.get(0, 0, row.i, d), row.plain.out[size_t(d)], row.oracle.out[size_t(d)]);
    EXPECT_TRUE(bound.holds());
    for (int64_t i = 0; i < 30; ++i)
      EXPECT_NEAR(shifted.lse.get(0, 0, i), still.lse.get(0, 0, i) + double(i % 7) - 3, 1e-5);
  }
}

TEST(Properties, AWindowLongerThanTheSequenceEqualsNone) {
  for (const DType type : kFloatTypes)
    for (const int queries : {1, 4, 50}) {
      const Case c{
          .dtype = type, .queries = queries, .keys = 150, .head_dim = 8, .value_dim = 5, .align = Align::kBottomRight};
      Case wide = c;
      wide.window = true, wide.left = 150, wide.right = 150;
      EXPECT_TRUE(same_bits(run(Example(c)), run(Example(wide))));
      wide.left = wide.right = std::numeric_limits<int>::max();
      EXPECT_TRUE(same_bits(run(Example(c)), run(Example(wide))));
      wide.left = wide.right = -1;
      EXPECT_TRUE(same_bits(run(Example(c)), run(Example(wide))));
    }
}

TEST(Properties, AMaskOfOnesEqualsNone) {
  for (const DType type : kFloatTypes)
    for (const int queries : {1, 4, 50}) {
      const Case c{.dtype = type, .queries = queries, .keys = 150, .head_dim = 8, .value_dim = 5};
      Case masked = c;
      masked.keep_mask = true;
      Example e(masked);
      e.keep_mask.fill(1);
      EXPECT_TRUE(same_bits(run(Example(c)), run(e)));
    }
}

TEST(Properties, RepeatedKeyHeadsEqualGroupedHeads) {
  for (const DType type : kFloatTypes)
    for (const bool tiled : {false, true})
      for (const int queries : {1, 3, 50}) {
        const Case c{.dtype = type,
                     .batch = 2,
                     .key_heads = 2,
                     .group = 3,
                     .queries = queries,
                     .keys = 150,
                     .head_dim = 8,
                     .value_dim = 5,
                     .tiled = tiled,
                     .causal = true,
                     .align = Align::kBottomRight,
                     .alibi = true};
        const Example grouped(c);
        Case each = c;
        each.key_heads = 6, each.group = 1, each.tiled = false;
        Example repeated(each);
        const auto repeat = [&](const Tensor& t) {
          const auto shared = [&](int64_t b, int64_t h, int64_t j, int64_t d) {
            return t.get(b, tiled ? h % 2 : h / 3, j, d);
          };
          return Tensor(type, {2, 6, 150, t.layout().shape[3]}).fill(shared);
        };
        repeated.query = grouped.query, repeated.alibi_slopes = grouped.alibi_slopes;
        repeated.key = repeat(grouped.key), repeated.value = repeat(grouped.value);
        EXPECT_TRUE(same_bits(run(grouped), run(repeated))) << c;
      }
}

TEST(Properties, CausalOutputsIgnoreWhatComesAfter) {
  for (const DType type : kFloatTypes) {
    const Example e(Case{.dtype = type, .queries = 140, .keys = 140, .head_dim = 8, .value_dim = 5, .causal = true});
    Example other = e;
    for (Tensor* t : {&other.key, &other.value})
      for (int64_t j = 100; j < 140; ++j)
        for (int64_t d = 0; d < t->layout().shape[3]; ++d) t->set(7 + double(d), 0, 0, j, d);
    const Result before = run(e), after = run(other);
    EXPECT_TRUE(same_bits(slice(before.out.view(), 2, 0, 100), slice(after.out.view(), 2, 0, 100)));
  }
}

TEST(Properties, AKeepMaskIsAnIgnoreMaskUpsideDown) {
  Example keep(Case{.queries = 40, .keys = 50, .head_dim = 4, .value_dim = 4, .keep_mask = true});
  Example ignore(Case{.queries = 40, .keys = 50, .head_dim = 4, .value_dim = 4, .ignore_mask = true});
  ignore.ignore_mask.fill(
      [&](int64_t b, int64_t h, int64_t i, int64_t j) { return 1 - keep.keep_mask.get(b, h, i, j); });
  EXPECT_TRUE(same_bits(run(keep), run(ignore)));
}

TEST(Properties, ASinkOfZeroEqualsAZeroKey) {
  for (const DType type : kFloatTypes) {
    Example sink(Case{.dtype = type,
                      .group = 2,
                      .queries = 40,
                      .keys = 50,
                      .head_dim = 4,
                      .value_dim = 4,
                      .keep_mask = true,
                      .sinks = true});
    sink.sinks.fill(0);
    const Example zero_key(Case{.dtype = type,
                                .group = 2,
                                .queries = 40,
                                .keys = 50,
                                .head_dim = 4,
                                .value_dim = 4,
                                .keep_mask = true,
                                .zero_key = true});
    EXPECT_TRUE(same_bits(run(sink), run(zero_key)));
  }
}

}  // namespace
}  // namespace qkv::testing
