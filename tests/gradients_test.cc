// Gradients against central differences of forward(), in double on tiny odd shapes: every option and every pair of them.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "attention/built_in_policies.h"
#include "qkv/backward.h"
#include "tests/support/backward.h"
#include "tests/support/options.h"

namespace qkv::testing {
namespace {

Case tiny(unsigned seed = 3) {
  return {.dtype = DType::kFloat64, .batch = 2, .key_heads = 2, .queries = 5, .keys = 7, .head_dim = 3, .value_dim = 2,
          .seed = seed};
}

/// sum of dout out + dlse lse over everything that is finite.
double loss(const Example& e, const Loss& by) {
  const Result r = run(e);
  double sum = 0;
  r.out.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { sum += r.out.get(a, b, c, d) * by.dout.get(a, b, c, d); });
  r.lse.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    if (std::isfinite(r.lse.get(a, b, c, d))) sum += r.lse.get(a, b, c, d) * by.dlse.get(a, b, c, d);
  });
  return sum;
}

/// Compares a gradient with differences of the loss by each element of `tensor`, which belongs to `e`.
::testing::AssertionResult is_slope(const char* name, Example& e, const Loss& by, Tensor& tensor, const Tensor& gradient) {
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  if (!tensor) return result;
  tensor.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    if (!result) return;
    const double x = tensor.get(a, b, c, d), got = gradient.get(a, b, c, d);
    if (std::isinf(x)) {
      if (got != 0) result = failure(std::string(name) + ": a gradient of " + std::to_string(got) + " through -inf");
      return;
    }
    constexpr double kStep = 0x1p-12;
    tensor.set(x + kStep, a, b, c, d);
    const double above = tensor.get(a, b, c, d), high = loss(e, by);
    tensor.set(x - kStep, a, b, c, d);
    const double below = tensor.get(a, b, c, d), low = loss(e, by);
    tensor.set(x, a, b, c, d);
    const double slope = (high - low) / (above - below);
    if (!(std::abs(got - slope) <= 1e-5 * (1 + std::abs(slope)))) {
      std::ostringstream text;
      text << name << "[" << a << ", " << b << ", " << c << ", " << d << "]: " << got << ", central difference " << slope;
      result = failure(text.str());
    }
  });
  return result;
}

void expect_slopes(Example& e) {
  const Loss by(e);
  const Slopes got = slopes(e, by);
  EXPECT_TRUE(is_slope("dquery", e, by, e.query, got.dquery));
  EXPECT_TRUE(is_slope("dkey", e, by, e.key, got.dkey));
  EXPECT_TRUE(is_slope("dvalue", e, by, e.value, got.dvalue));
  got.each_parameter([&](std::string_view name, const Tensor& gradient) {
    Tensor* tensor = name == "bias" ? &e.bias : name == "alibi_slopes" ? &e.alibi_slopes : &e.sinks;
    for (auto& p : e.parameters)
      if (p.name == name) tensor = &p.tensor;
    EXPECT_TRUE(is_slope(std::string(name).c_str(), e, by, *tensor, gradient));
  });
}

TEST(Gradients, NoBuiltInPolicyEscapesTheListOfOptions) {
  const auto name_of = [](const auto& policy) { return policy->about().text.substr(0, policy->about().text.find(':')); };
  std::set<std::string, std::less<>> used;
  for (const Option& option : options()) {
    Case c = tiny();
    option.set(c);
    const Attention a = c.attention();
    for (const auto& p : a.patterns()) used.insert(name_of(p));
    for (const auto& p : a.scores()) used.insert(name_of(p));
  }
  for (const auto& word : built_in_policies().words())
    EXPECT_TRUE(used.contains(word.name)) << word.name << " is in no option of tests/support/options.h";
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

}  // namespace
}  // namespace qkv::testing
