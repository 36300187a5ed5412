// Gradients against central differences of forward(), in double on tiny odd shapes: every option and every pair of them.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "attention/built_in_policies.h"
#include "qkv/backward.h"
#include "tests/support/backward.h"
#include "tests/support/options.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

Case tiny(unsigned seed = 3) {
  return {.dtype = DType::kFloat64,
          .batch = 2,
          .key_heads = 2,
          .queries = 5,
          .keys = 7,
          .head_dim = 3,
          .value_dim = 2,
          .seed = seed};
}

TEST(Gradients, NoWordOfTheTextFormEscapesTheListOfOptions) {
  std::set<std::string, std::less<>> used;
  for (const Option& option : options()) {
    Case c = tiny();
    option.set(c);
    std::istringstream words(c.attention().text());
    for (std::string word; words >> word;) used.insert(word.substr(0, word.find(':')));
  }
  for (const std::string_view word : built_in_words())
    EXPECT_TRUE(used.contains(word)) << word << " is in no option of tests/support/options.h";
}

TEST(Gradients, AgreeWithCentralDifferencesForEveryPairOfOptions) {
  for (size_t n = 0; n < options().size(); ++n) {
    for (size_t m = n; m < options().size(); ++m) {
      Case c = tiny();
      options()[n].set(c);
      options()[m].set(c);
      if (c.packed) c.key_lengths = false;
      SCOPED_TRACE(std::string(options()[n].name) + " with " + options()[m].name);
      Example e(c);
      expect_slopes(e);
      if (HasFailure()) return;
    }
  }
}

TEST(Gradients, LieWithinTheBoundForEveryOptionInEveryType) {
  for (const DType type : kFloatTypes)
    for (const Option& option : options()) {
      Case c{.dtype = type, .batch = 2, .queries = 51, .keys = 70, .head_dim = 17, .value_dim = 9};
      option.set(c);
      SCOPED_TRACE(std::string(name(type)) + " with " + option.name);
      const Example e(c);
      const Loss by(e);
      const Left left(e);
      const ExpectedSlopes expected(e, by, left);
      Slopes got(e, Placement::kContiguous);
      backward(e.attention, e.inputs(), left.upstream(by), got.views());
      EXPECT_TRUE(expected.within_bound(e, got));
    }
}

TEST(Gradients, OfCapsFarAboveTheScoresKeepTheirDigits) {
  for (const DType type : {DType::kFloat32, DType::kFloat64}) {
    Case c{.dtype = type, .queries = 5, .keys = 7, .head_dim = 3, .value_dim = 2, .softcaps = true, .magnitude = 0.1};
    const Example e(c);
    const Loss by(e);
    const Left left(e);
    const Slopes got = slopes(e, by);
    const double right = ExpectedSlopes(e, by, left).oracle.by_tensor.at("softcaps")[0];
    EXPECT_NEAR(got.dparameters[0].tensor.get(0), right, 1e3 * epsilon(type) * std::abs(right)) << name(type);
  }
}

TEST(Gradients, HaveTheSameBitsForAnyThreadsAndPlacement) {
  ThreadPool one(1), two(2), three(3), eight(8);
  for (const Option& option : options()) {
    Case c{.batch = 2, .key_heads = 2, .queries = 130, .keys = 450, .head_dim = 24, .value_dim = 20};
    option.set(c);
    SCOPED_TRACE(option.name);
    const Example e(c);
    const Loss by(e);
    const Slopes once = slopes(e, by, {.executor = &one});
    for (ThreadPool* pool : {&two, &three, &eight}) EXPECT_TRUE(same_bits(once, slopes(e, by, {.executor = pool})));
    for (const Placement p : kPlacements) {
      Case other = c;
      other.placement = p;
      const Example placed(other);
      EXPECT_TRUE(same_bits(once, slopes(placed, Loss(placed, p), {.executor = &two}, p))) << name(p);
    }
  }
}

TEST(Gradients, HaveTheSameBitsOnInstructionSetsWithFusedMultiplyAdd) {
  for (const DType type : kFloatTypes)
    for (const Option& option : options()) {
      Case c{.dtype = type, .batch = 2, .key_heads = 2, .queries = 61, .keys = 213, .head_dim = 9, .value_dim = 10};
      option.set(c);
      SCOPED_TRACE(std::string(name(type)) + " with " + option.name);
      const Example e(c);
      const Loss by(e);
      std::vector<std::pair<std::string, Slopes>> fused;
      each_instruction_set([&](const std::string& set) {
        if (set.starts_with("AVX") || set.starts_with("NEON")) fused.push_back({set, slopes(e, by)});
      });
      for (size_t n = 1; n < fused.size(); ++n)
        EXPECT_TRUE(same_bits(fused[0].second, fused[n].second)) << fused[0].first << " and " << fused[n].first;
    }
}

TEST(Gradients, LieWithinTheBoundOnEveryInstructionSet) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : {DType::kFloat32, DType::kFloat64})
      for (const Option& option : options()) {
        Case c{.dtype = type, .batch = 2, .queries = 51, .keys = 70, .head_dim = 17, .value_dim = 9};
        option.set(c);
        SCOPED_TRACE(set + ", " + name(type) + " with " + option.name);
        EXPECT_TRUE(slopes_within_bound(Example(c)));
      }
  });
}

}  // namespace
}  // namespace qkv::testing
