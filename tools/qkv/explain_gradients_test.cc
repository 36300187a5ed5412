// The way back of one query: qkv explain --backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "qkv/backward.h"
#include "qkv/command_fixture.h"
#include "qkv/explain.h"
#include "qkv/problem_of_case.h"
#include "tests/support/backward.h"

namespace qkv::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

Problem problem_with(const testing::Example& example, const testing::Loss& loss) {
  Problem p = problem_of(example);
  p.dout = loss.dout.view();
  p.dlse = loss.dlse.view();
  return p;
}

TEST(ExplainBackward, AgreesWithTheLibraryOnEveryOptionAndType) {
  for (const testing::Case& c : small_cases()) {
    const testing::Example example(c);
    const testing::Loss loss(example);
    const testing::Slopes whole = testing::slopes(example, loss);
    const Problem p = problem_with(example, loss);
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t i = 0; i < queries_of(p, b); i += 3) {
        const int64_t h = (b + i + c.seed) % c.query_heads();
        const Explanation e = explain_query(p, b, h, i);
        for (const Agreement& a : e.agreements)
          EXPECT_TRUE(a.holds()) << c << a.what << " " << a.difference << " of " << a.allowed;
        const View<const void> row = row_of(p, whole.dquery.view(), b, h, i);
        for (int64_t d = 0; d < c.head_dim; ++d) {
          const double right = element(row, 0, 0, 0, d);
          EXPECT_NEAR(e.gradients->query[static_cast<size_t>(d)], right, 64 * testing::epsilon(c.dtype)) << c;
        }
      }
    }
  }
}

TEST(ExplainBackward, ContributionsOfAllQueriesAreTheGradientsByKeysAndValues) {
  testing::Case c;
  c.dtype = DType::kFloat64, c.queries = 5, c.keys = 7, c.head_dim = 3, c.value_dim = 2, c.causal = true;
  c.align = Align::kBottomRight, c.softcap = 1, c.alibi = true;
  const testing::Example example(c);
  const testing::Loss loss(example);
  const testing::Slopes whole = testing::slopes(example, loss);
  const Problem p = problem_with(example, loss);
  std::vector<double> dk(21), dv(14);
  for (int64_t i = 0; i < 5; ++i) {
    const Explanation e = explain_query(p, 0, 0, i);
    for (size_t j = 0; j < 7; ++j) {
      for (size_t d = 0; d < 3; ++d) dk[3 * j + d] += e.gradients->of[j].key[d];
      for (size_t d = 0; d < 2; ++d) dv[2 * j + d] += e.gradients->of[j].value[d];
    }
  }
  for (int64_t j = 0; j < 7; ++j) {
    for (int64_t d = 0; d < 3; ++d) EXPECT_NEAR(dk[static_cast<size_t>(3 * j + d)], whole.dkey.get(0, 0, j, d), 1e-13);
    for (int64_t d = 0; d < 2; ++d)
      EXPECT_NEAR(dv[static_cast<size_t>(2 * j + d)], whole.dvalue.get(0, 0, j, d), 1e-13);
  }
}

TEST(ExplainBackward, AgreesWhereOneKeyTakesAllAndTermsCancel) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    testing::Case c;
    c.dtype = testing::kFloatTypes[seed % 4];
    c.queries = 1, c.keys = 4, c.head_dim = 3, c.value_dim = 33, c.causal = true, c.align = Align::kTopLeft,
    c.seed = seed;
    const testing::Example example(c);
    const testing::Loss loss(example);
    Problem p = problem_of(example);
    p.dout = loss.dout.view();
    for (const Agreement& a : explain_query(p, 0, 0, 0).agreements)
      EXPECT_TRUE(a.holds()) << c << a.what << " " << a.difference << " of " << a.allowed;
  }
}

class ExplainBackwardCommand : public Command {
 protected:
  json explained(const std::string& arguments) const { return json_of("explain " + arguments + " --backward"); }
  std::string page(const std::string& arguments) const { return output_of("explain " + arguments + " --backward"); }
};

TEST_F(ExplainBackwardCommand, HasTheNumbersOfTheWorkedExamples) {  // worked out twice in float64
  const json e = explained("--example W1 --query 0 --dout '1,0;0,1'");
  EXPECT_NEAR(e["dq"][0].get<double>(), 0.4691957896353313, 1e-15);
  EXPECT_NEAR(e["dq"][1].get<double>(), -0.4691957896353308, 1e-15);
  EXPECT_NEAR(e["delta"].get<double>(), 0.990715352020029, 1e-15);
  const json causal = explained("--example W3c --query 2 --dout '1,0;0,1;1,-1'");
  EXPECT_NEAR(causal["dq"][0].get<double>(), 0.12709767762539423, 1e-15);
  EXPECT_NEAR(causal["dq"][1].get<double>(), 0.12196646809608605, 1e-15);
  for (const json& what : causal["library"]) EXPECT_TRUE(what["holds"]) << what;
  EXPECT_EQ(causal["library"].size(), 5U);
}

TEST_F(ExplainBackwardCommand, APageShowsEveryStepWithItsNumbers) {
  EXPECT_THAT(page("--q '0,0' --k '1,2;3,0' --v '1;3' --scale 1 --dout 2 --key-tokens a,b"),
              HasSubstr("8. Back to the weights   dP = dout · v: by how much the loss grows with each weight\n"
                        "   dout = [2]: by how much it grows with each number of out\n"
                        "   key   v              dP\n"
                        "   a(0)  [1]  2 · 1  =   2\n"));
}

TEST_F(ExplainBackwardCommand, GoesBackThroughEveryModifierLastToFirst) {
  const std::string text = page(
      "--example W3 --query 1 --causal --softcap 2 --alibi --bias '1,0,0;0,0,0;0,0,0' --sinks 0.5 --zero-key --dout 1");
  EXPECT_THAT(text,
              AllOf(HasSubstr("Back through the bias"), HasSubstr("Back through ALiBi"), HasSubstr("by the slope = "),
                    HasSubstr("Back through the soft-cap   dS = dS · (1 - tanh(s / 2)^2)"), HasSubstr("hidden"),
                    HasSubstr("   sink ")));
  EXPECT_LT(text.find("Back through the bias"), text.find("Back through ALiBi"));
  EXPECT_LT(text.find("Back through ALiBi"), text.find("Back through the soft-cap"));
}

TEST_F(ExplainBackwardCommand, GradientsByTheScoresSumToThatByTheLogSumExp) {
  const double q[] = {1, 2}, k[] = {2, 1, 1, 2}, v[] = {3, 0, 0, 3}, dout[] = {1, -1}, dlse[] = {0.25};
  const NamedTensor tensors[] = {{"q", View<const double>(q, {1, 2})},
                                 {"k", View<const double>(k, {2, 2})},
                                 {"v", View<const double>(v, {2, 2})},
                                 {"dout", View<const double>(dout, {1, 2})},
                                 {"dlse", View<const double>(dlse, {1})}};
  write_npz(file("loss.npz"), tensors);
  const json e = explained(file("loss.npz"));
  EXPECT_EQ(e["dlse"], 0.25);
  EXPECT_NEAR(e["keys"][0]["dscore"].get<double>() + e["keys"][1]["dscore"].get<double>(), 0.25, 1e-15);
  EXPECT_THAT(page(file("loss.npz")), AllOf(HasSubstr("delta = dout · out - dlse"), HasSubstr("   sum  ")));
}

TEST_F(ExplainBackwardCommand, OfManyKeysTheStrongestAndTheRest) {
  const std::string file = kSample + " --layer 4 --head 7 --query 5 --dout 1";
  EXPECT_THAT(page(file + " --top 2"),
              AllOf(HasSubstr("11 more"), HasSubstr("dq: the library's backward() differs by")));
  const json all = explained(file);
  EXPECT_EQ(all["keys"].size(), 13U);
  EXPECT_EQ(all["dout"], json(std::vector<double>(32, 1.0)));
}

TEST_F(ExplainBackwardCommand, AQueryThatSeesNothingHasNoGradients) {
  const json e = explained("--q '1,2' --k '2,1' --v '3,0' --keep-mask 0 --dout 1");
  EXPECT_EQ(e["dq"], json({0.0, 0.0}));
  EXPECT_EQ(e["keys"][0]["dk"], json({0.0, 0.0}));
}

TEST_F(ExplainBackwardCommand, WrongUseIsCodeTwoAndOneLine) {
  expect_refusal("explain --example W1 --backward", 2, "dout is missing");
  expect_refusal("explain --example W1 --dout 1", 2, "--dout requires --backward");
  expect_refusal("explain --example W1 --backward --dout nan", 2, "dout: there is nan in it");
  expect_refusal("explain --example W1 --backward --dout '1,2,3'", 2,
                 "dout {1, 1, 1, 3}: expected the shape of out, {1, 1, 2, 2}");
  expect_refusal("explain --q 1 --k 1 --backward --dout 1", 2, "give v too");
  expect_refusal("explain " + kSample + " --layer 4 --backward", 2, "layer4.dout is missing");
}

}  // namespace
}  // namespace qkv::cli
