// Dropout: the generator against its published vectors, the draws against their definition, weights and moments.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/kernels.h"
#include "qkv/dropout.h"
#include "tests/support/compare.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

TEST(Dropout, PhiloxGivesItsPublishedVectors) {
  // Random123 1.14, kat_vectors, philox4x32 with 7 and with 10 rounds.
  using Words = std::array<uint32_t, 4>;
  constexpr uint32_t kAll = 0xFFFFFFFF;
  constexpr Words kPi = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
  constexpr uint64_t kMorePi = 0x299f31d0a4093822;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 7), (Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(philox({kAll, kAll, kAll, kAll}, ~uint64_t{0}, 7), (Words{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(philox(kPi, kMorePi, 7), (Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 10), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({kAll, kAll, kAll, kAll}, ~uint64_t{0}, 10),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(kPi, kMorePi, 10), (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, KernelsKeepWhatTheDefinitionKeepsOnEveryInstructionSet) {
  each_instruction_set([](const std::string& set) {
    for (const double p : {0.0, 1e-9, 0.1, 0.5, 0.75, 1 - 0x1p-32, 1.0})
      for (int query = -3; query < 40; query += 7) {
        const Site at{5, 3, 0, 0, query, 1 << 20};
        uint64_t words[4];
        kernels::dropout_kernel()({77, dropout_threshold(p), at.batch, at.key, 1, &at.head, &at.query}, 4, words);
        for (int j = 0; j < 256; ++j) {
          Site one = at;
          one.key += j;
          ASSERT_EQ(words[j / 64] >> (j % 64) & 1, dropout_keeps(77, dropout_threshold(p), one)) << set << " " << p;
        }
      }
  });
}

TEST(Dropout, TheLowerBitsDecideWhereTheUpperDoNot) {
  // A threshold that differs from the draw of a pair in its lowest bit only.
  const Site at{1, 2, 0, 0, 9, 13};
  uint64_t low = 0, high = uint64_t{1} << 32;
  while (high - low > 1) (dropout_keeps(5, (low + high) / 2, at) ? low : high) = (low + high) / 2;
  EXPECT_TRUE(dropout_keeps(5, low, at));
  EXPECT_FALSE(dropout_keeps(5, low + 1, at));
  Site first = at;
  first.key = 8;
  for (const uint64_t threshold : {low, low + 1}) {
    uint64_t word;
    kernels::dropout_kernel()({5, threshold, first.batch, first.key, 1, &first.head, &first.query}, 1, &word);
    EXPECT_EQ(word >> (at.key - first.key) & 1, dropout_keeps(5, threshold, at));
  }
}

TEST(Dropout, KeepsTheShareThatIsAskedForIndependentlyInEveryDirection) {
  constexpr int kN = 256;
  const double p = 0.3;
  const uint64_t threshold = dropout_threshold(p);
  double kept = 0, beside = 0, below = 0, in_next_head = 0;
  const auto keeps = [&](int h, int i, int j) {
    return double(dropout_keeps(11, threshold, {0, h, i, j, i, j})) - (1 - p);
  };
  for (int i = 0; i < kN; ++i)
    for (int j = 0; j < kN; ++j) {
      const double here = keeps(0, i, j);
      kept += here;
      beside += here * keeps(0, i, j + 1);
      below += here * keeps(0, i + 1, j);
      in_next_head += here * keeps(1, i, j);
    }
  // Five standard deviations of sums of kN^2 independent numbers of variance p (1 - p), and of their products.
  const double variance = p * (1 - p);
  EXPECT_LT(std::abs(kept), 5 * kN * std::sqrt(variance));
  for (const double product : {beside, below, in_next_head}) EXPECT_LT(std::abs(product), 5 * kN * variance);
}

TEST(Dropout, LeavesMeanAndVarianceOfTheOutputAsTheyShouldBe) {
  // Equal weights 1/n of values 1: the mean of out is 1, its variance p / (1 - p) / n.
  constexpr int kKeys = 64, kRows = 4096;
  const double p = 0.4;
  const Tensor q = Tensor(DType::kFloat32, {1, 1, kRows, 1}).fill(0.0),
               k = Tensor(DType::kFloat32, {1, 1, kKeys, 1}).fill(0.0),
               v = Tensor(DType::kFloat32, {1, 1, kKeys, 1}).fill(1.0);
  Tensor out(DType::kFloat32, {1, 1, kRows, 1});
  forward(Attention{}.dropout(p), {.query = q.view(), .key = k.view(), .value = v.view(), .dropout_seed = 3},
          {.out = out.view()});
  double sum = 0, squares = 0;
  for (int i = 0; i < kRows; ++i) {
    sum += out.get(0, 0, i) - 1;
    squares += std::pow(out.get(0, 0, i) - 1, 2);
  }
  const double variance = p / (1 - p) / kKeys;
  EXPECT_LT(std::abs(sum / kRows), 5 * std::sqrt(variance / kRows));
  EXPECT_NEAR(squares / kRows, variance, 5 * variance * std::sqrt(2.0 / kRows));
}

TEST(Dropout, ActsOnlyWhereTheCallBringsASeedOrATensor) {
  Case c{.queries = 5, .keys = 7, .head_dim = 3, .value_dim = 2, .dropout = 0.9};
  Example with(c);
  Inputs in = with.inputs();
  in.dropout_seed.reset();
  Tensor out = with.out(), lse = with.lse();
  forward(with.attention, in, {.out = out.view(), .lse = lse.view()});
  c.dropout = 0;
  EXPECT_TRUE(same_bits(out, run(Example(c)).out));
}

TEST(Dropout, OfOneGivesZerosAndLeavesLogSumExp) {
  Case c{.queries = 5, .keys = 7, .head_dim = 3, .value_dim = 2, .dropout = 1};
  const Result all = run(Example(c));
  c.dropout = 0;
  all.out.each([&](int64_t a, int64_t b, int64_t i, int64_t d) { EXPECT_EQ(all.out.get(a, b, i, d), 0); });
  EXPECT_TRUE(same_bits(all.lse, run(Example(c)).lse));
}

TEST(Dropout, SeedAndTensorTogetherAreRefused) {
  const Example e({.queries = 2, .keys = 2, .dropout = 0.5, .dropout_keep = true});
  Inputs in = e.inputs();
  in.dropout_seed = 1;
  Tensor out = e.out();
  EXPECT_THROW(forward(e.attention, in, {.out = out.view()}), OptionError);
  in.dropout_seed.reset();
  EXPECT_THROW(forward(Attention{}, in, {.out = out.view()}), OptionError);
}

}  // namespace
}  // namespace qkv::testing
