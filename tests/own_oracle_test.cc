// Policies of one's own against the oracle, alone and mixed with the built-in ones.
#include <gtest/gtest.h>

#include <atomic>

#include "examples/own_policies.h"
#include "tests/support/compare.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

void expect_bound(Attention attention, const Case& c) {
  Example e(c);
  e.attention = std::move(attention);
  const Expected expected(e);
  each_instruction_set([&](const std::string& set) {
    EXPECT_TRUE(runs_within_bound(e, expected)) << set << " " << e.attention.text() << " " << c;
  });
}

TEST(OwnPolicies, LieWithinTheBound) {
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const int queries : {1, 3, 65}) {
      const Case c{.dtype = type,
                   .batch = 2,
                   .group = 2,
                   .queries = queries,
                   .keys = 150,
                   .head_dim = 9,
                   .value_dim = 4,
                   .key_lengths = true};
      expect_bound(Attention{}.score(Decay{0.05f}).align(Align::kBottomRight), c);
      expect_bound(Attention{}.visible(Prompt{9}).align(Align::kBottomRight), c);
      expect_bound(Attention{}.visible(Strided{3}).align(Align::kTopLeft), c);
      expect_bound(Attention{}
                       .visible(Strided{150})
                       .visible(Window{40, 2})
                       .score(SoftCap{2})
                       .score(Decay{1})
                       .align(Align::kBottomRight),
                   c);
      expect_bound(Attention{}
                       .visible(Prompt{9})
                       .visible(Strided{2})
                       .visible(Causal{})
                       .score(Decay{0.3f})
                       .score(SoftCap{1})
                       .align(Align::kTopLeft),
                   c);
    }
  }
}

/// Counts how often it is asked.
struct Counted {
  static constexpr bool kReadsHead = false;
  std::atomic<int64_t>* calls = nullptr;
  bool sees(Site at) const {
    calls->fetch_add(1, std::memory_order_relaxed);
    return (at.query + at.key) % 3 != 0;
  }
};
struct CountedEachHead : Counted {
  static constexpr bool kReadsHead = true;
};

TEST(OwnPolicies, AMaskThatDoesNotReadTheHeadIsMadeOnceForAllHeads) {
  constexpr int kHeads = 12, kLength = 300;
  const auto count = [&](int heads, auto pattern) {
    std::atomic<int64_t> calls = 0;
    pattern.calls = &calls;
    Example e(Case{.key_heads = heads, .queries = kLength, .keys = kLength, .head_dim = 4, .value_dim = 4});
    e.attention.visible(pattern);
    run(e);
    return calls.load();
  };
  const int64_t one = count(1, Counted{}), all = count(kHeads, Counted{});
  EXPECT_GE(one, int64_t{kLength} * kLength);
  EXPECT_LE(all, one * 11 / 10);
  EXPECT_GE(count(kHeads, CountedEachHead{}), int64_t{kHeads} * kLength * kLength);
}

}  // namespace
}  // namespace qkv::testing
