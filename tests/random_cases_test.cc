// All options at once, at random, shrunk to the smallest case that fails. RC_PARAMS="seed=... max_success=1000" asks for more.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>

#include "tests/support/backward.h"
#include "tests/support/options.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

/// The same cases on every run, unless the environment says otherwise. RapidCheck reads it at its first use.
const bool kSeeded = setenv("RC_PARAMS", "seed=7 max_success=300", 0) == 0;

/// Drops what does not go together.
Case legal(Case c) {
  if (c.packed) c.key_lengths = false;
  if (!c.bias) c.bias_hides = false;
  if (!c.window) c.left = c.right = -1;
  return c;
}

rc::Gen<Case> cases() {
  namespace gen = rc::gen;
  return gen::map(
      gen::build<Case>(
          gen::set(&Case::dtype, gen::elementOf(std::vector<DType>(std::begin(kFloatTypes), std::end(kFloatTypes)))),
          gen::set(&Case::batch, gen::inRange(1, 4)), gen::set(&Case::key_heads, gen::inRange(1, 3)),
          gen::set(&Case::group, gen::inRange(1, 4)), gen::set(&Case::queries, gen::inRange(0, 70)),
          gen::set(&Case::keys, gen::inRange(0, 160)), gen::set(&Case::head_dim, gen::inRange(0, 40)),
          gen::set(&Case::value_dim, gen::inRange(0, 40)),
          gen::set(&Case::placement,
                   gen::elementOf(std::vector<Placement>(std::begin(kPlacements), std::end(kPlacements)))),
          gen::set(&Case::packed, gen::arbitrary<bool>()), gen::set(&Case::tiled, gen::arbitrary<bool>()),
          gen::set(&Case::causal, gen::arbitrary<bool>()), gen::set(&Case::window, gen::arbitrary<bool>()),
          gen::set(&Case::left, gen::inRange(-1, 40)), gen::set(&Case::right, gen::inRange(-1, 40)),
          gen::set(&Case::align, gen::element(Align::kTopLeft, Align::kBottomRight)),
          gen::set(&Case::key_lengths, gen::arbitrary<bool>()), gen::set(&Case::query_offset, gen::arbitrary<bool>()),
          gen::set(&Case::key_start, gen::arbitrary<bool>()), gen::set(&Case::documents, gen::arbitrary<bool>()),
          gen::set(&Case::keep_mask, gen::arbitrary<bool>()), gen::set(&Case::ignore_mask, gen::arbitrary<bool>()),
          gen::set(&Case::mask_axes, gen::inRange(0, 16)), gen::set(&Case::scale, gen::element(0.0, 1.0, -0.5)),
          gen::set(&Case::softcap, gen::element(0.0, 0.7, 30.0)), gen::set(&Case::softcaps, gen::arbitrary<bool>()),
          gen::set(&Case::scales, gen::arbitrary<bool>()), gen::set(&Case::alibi, gen::arbitrary<bool>()),
          gen::set(&Case::bias, gen::arbitrary<bool>()), gen::set(&Case::bias_hides, gen::arbitrary<bool>()),
          gen::set(&Case::sinks, gen::arbitrary<bool>()), gen::set(&Case::zero_key, gen::arbitrary<bool>()),
          gen::set(&Case::dropout, gen::element(0.0, 0.0, 0.2, 1.0)),
          gen::set(&Case::dropout_keep, gen::arbitrary<bool>()),
          gen::set(&Case::magnitude, gen::element(1.0, 0.1, 5.0)), gen::set(&Case::seed, gen::inRange(1u, 1000u))),
      legal);
}

TEST(RandomCases, LieWithinTheBoundOnEveryInstructionSet) {
  ASSERT_TRUE(kSeeded);
  rc::detail::checkGTest([] {
    const Case c = *cases();
    const Example e(c);
    const Expected expected(e);
    each_instruction_set([&](const std::string& set) {
      const auto ok = runs_within_bound(e, expected);
      if (!ok) RC_FAIL(set + ": " + ok.message());
    });
  });
}

TEST(RandomCases, HaveTheSameBitsWithOneThreadAndThree) {
  rc::detail::checkGTest([] {
    const Example e(*cases());
    ThreadPool one(1), three(3);
    const auto same = same_bits(run(e, {.executor = &one}), run(e, {.executor = &three}));
    if (!same) RC_FAIL(same.message());
  });
}

TEST(RandomCases, HaveGradientsWithinTheBoundFromEitherSum) {
  rc::detail::checkGTest([] {
    const Example e(*cases());
    for (const Sums sums : {Sums::kExact, Sums::kOnlyLse}) {
      const auto ok = slopes_within_bound(e, sums);
      if (!ok) RC_FAIL((sums == Sums::kOnlyLse ? "from lse alone: " : "") + std::string(ok.message()));
    }
  });
}

TEST(RandomCases, HaveGradientsWithTheSameBitsWithOneThreadAndThree) {
  rc::detail::checkGTest([] {
    const Example e(*cases());
    const Loss by(e);
    ThreadPool one(1), three(3);
    const auto same = same_bits(slopes(e, by, {.executor = &one}), slopes(e, by, {.executor = &three}));
    if (!same) RC_FAIL(same.message());
  });
}

}  // namespace
}  // namespace qkv::testing
