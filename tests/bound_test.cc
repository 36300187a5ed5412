// Output and log-sum-exp lie within the error bound: all element types, all options, odd sizes, every instruction set.
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/options.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

constexpr int kLengths[] = {1, 7, 63, 65, 129};
constexpr int kHeadDims[] = {1, 3, 33, 64, 80, 128, 257};

void expect_bound(const Case& c, const char* option) {
  const Example e(c);
  const Expected expected(e);
  each_instruction_set([&](const std::string& set) {
    EXPECT_TRUE(runs_within_bound(e, expected)) << set << ", " << option << ", " << c;
  });
}

class Bounds : public ::testing::TestWithParam<DType> {};

/// Sizes take turns: every length of queries and of keys, every head size meets every type, not every other size.
TEST_P(Bounds, HoldForEveryOptionAtOddSizes) {
  unsigned turn = unsigned(GetParam()) * 5;
  for (const Option& option : options()) {
    for (const int queries : kLengths) {
      Case c{.dtype = GetParam(),
             .batch = 2,
             .key_heads = 1,
             .queries = queries,
             .keys = kLengths[(turn * 2 + 1) % 5],
             .head_dim = kHeadDims[turn % 7],
             .value_dim = kHeadDims[(turn * 3 + 2) % 7],
             .placement = kPlacements[turn % 5],
             .seed = turn + 1};
      option.set(c);
      expect_bound(c, option.name);
      ++turn;
    }
  }
}

TEST_P(Bounds, HoldForEveryHeadSize) {
  for (const int head_dim : {1, 2, 3, 5, 8, 15, 17, 33, 48, 63, 64, 65, 72, 80, 96, 127, 128, 129, 192, 256, 257})
    expect_bound({.dtype = GetParam(), .queries = 25, .keys = 31, .head_dim = head_dim, .value_dim = 258 - head_dim},
                 "sizes");
}

/// Scores up to some hundreds: the softmax is nearly a choice of one key.
TEST_P(Bounds, HoldForLargeScores) {
  for (const double magnitude : {4.0, 12.0})
    expect_bound(
        {.dtype = GetParam(), .queries = 65, .keys = 129, .head_dim = 64, .value_dim = 33, .magnitude = magnitude},
        "large");
}

TEST_P(Bounds, HoldAcrossBlocksAndChunksOfKeys) {
  for (const int keys : {127, 128, 257, 2047, 2048, 2049, 4500})
    for (const int queries : {1, 3, 30})
      expect_bound({.dtype = GetParam(),
                    .group = 2,
                    .queries = queries,
                    .keys = keys,
                    .head_dim = 5,
                    .value_dim = 3,
                    .causal = true,
                    .align = Align::kBottomRight},
                   "keys");
}

std::string type_name(const ::testing::TestParamInfo<DType>& info) { return qkv::name(info.param); }
INSTANTIATE_TEST_SUITE_P(Types, Bounds, ::testing::ValuesIn(kFloatTypes), type_name);

/// All lengths with all lengths and all head sizes, for each option.
class SlowBounds : public ::testing::TestWithParam<DType> {};
TEST_P(SlowBounds, HoldForEveryOptionAtEverySize) {
  unsigned turn = 0;
  for (const Option& option : options())
    for (const int queries : kLengths)
      for (const int keys : kLengths)
        for (const int head_dim : kHeadDims) {
          Case c{.dtype = GetParam(),
                 .key_heads = 2,
                 .queries = queries,
                 .keys = keys,
                 .head_dim = head_dim,
                 .value_dim = kHeadDims[turn % 7],
                 .placement = kPlacements[turn % 5],
                 .seed = turn + 1};
          option.set(c);
          expect_bound(c, option.name);
          ++turn;
        }
}
INSTANTIATE_TEST_SUITE_P(SlowTypes, SlowBounds, ::testing::ValuesIn(kFloatTypes), type_name);

TEST(Targets, AreAllOnesThatThisMachineHas) {
  std::set<std::string> names;
  each_instruction_set([&](const std::string& set) { names.insert(set); });
  EXPECT_GE(names.size(), 1u);
  EXPECT_TRUE(names.count(instruction_set())) << "what is used by default is among them";
}

}  // namespace
}  // namespace qkv::testing
