#include "qkv/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include <nlohmann/json.hpp>

#include "qkv/command_fixture.h"
#include "qkv/labels.h"
#include "qkv/problem_of_case.h"
#include "tests/support/compare.h"

namespace qkv::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// 2 eps of the type, and what a rounding of scores of this size does to a weight.
double near(DType type) { return 64 * testing::epsilon(type); }

TEST(Explain, AgreesWithTheLibraryOnEveryOptionAndType) {
  for (const testing::Case& c : small_cases()) {
    const testing::Example example(c);
    const Problem p = problem_of(example);
    testing::Tensor out = example.out(), lse = example.lse(), weights = example.matrix();
    forward(p.attention, p.inputs, {.out = out.view(), .lse = lse.view(), .weights = weights.view()});
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t i = 0; i < queries_of(p, b); i += 3) {
        const int64_t h = (b + i + c.seed) % c.query_heads();
        const Explanation e = explain_query(p, b, h, i);
        for (const Agreement& a : e.agreements)
          EXPECT_TRUE(a.holds()) << c << a.what << " " << a.difference << " of " << a.allowed;
        const View<const void> row = row_of(p, out.view(), b, h, i);
        for (int64_t d = 0; d < c.value_dim; ++d)
          EXPECT_NEAR(e.out[static_cast<size_t>(d)], element(row, 0, 0, 0, d), near(c.dtype)) << c;
        for (const KeySteps& k : e.keys)
          EXPECT_NEAR(k.weight, weights.get(b, h, i, k.key), near(example.lse_type())) << c;
        const double whole = element(row_of(p, lse.view(), b, h, i), 0, 0, 0, 0);
        if (std::isinf(whole)) EXPECT_EQ(e.lse, whole) << c;
        else EXPECT_NEAR(e.lse, whole, near(example.lse_type())) << c;
      }
    }
  }
}

TEST(Explain, AgreesWhereNumbersAreNotFinite) {
  testing::Case c;
  c.queries = 1, c.keys = 3, c.head_dim = 2, c.value_dim = 2, c.causal = true, c.align = Align::kBottomRight;
  for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY), 3e38}) {
    testing::Example example(c);
    example.key.set(bad, 0, 0, 1, 0);
    for (const Agreement& a : explain_query(problem_of(example), 0, 0, 0).agreements)
      EXPECT_TRUE(a.holds()) << bad << a.what << a.difference;
    testing::Example value(c);
    value.value.set(bad, 0, 0, 1, 0);
    for (const Agreement& a : explain_query(problem_of(value), 0, 0, 0).agreements)
      EXPECT_TRUE(a.holds()) << bad << a.what << a.difference;
  }
}

TEST(Explain, CountsWhatALengthCutsOff) {
  testing::Case c;
  c.queries = 1, c.keys = 5, c.head_dim = 2, c.value_dim = 2;
  testing::Example example(c);
  example.key_lengths = testing::Tensor(DType::kInt32, {1}).fill([](auto...) { return 2; });
  const Explanation e = explain_query(problem_of(example), 0, 0, 0);
  EXPECT_EQ(e.keys.size(), 2U);
  EXPECT_EQ(e.missing_keys, 3);
}

class ExplainCommand : public Command {
 protected:
  json explained(const std::string& arguments) const { return json_of("explain " + arguments); }
  std::string page(const std::string& arguments) const { return output_of("explain " + arguments); }
};

double number_of(const json& x) { return x.is_string() ? -INFINITY : x.get<double>(); }

TEST_F(ExplainCommand, ExamplesHaveExactlyTheirNumbers) {
  const json samples = json::parse(io::bytes_of(std::string(QKV_SOURCE_DIR) + "/samples/worked-examples.json"));
  ASSERT_EQ(samples["examples"].size(), 14U);
  for (const json& sample : samples["examples"]) {
    const std::string name = sample["name"];
    for (size_t h = 0; h < sample["q"].size(); ++h) {
      for (size_t i = 0; i < sample["q"][h].size(); ++i) {
        const json e =
            explained("--example " + name + " --head " + std::to_string(h) + " --query " + std::to_string(i));
        EXPECT_EQ(e["q"], sample["q"][h][i]) << name;
        for (const json& key : e["keys"]) {
          const size_t j = key["key"];
          EXPECT_EQ(key["value"], sample["v"][h][j]) << name;
          EXPECT_NEAR(key["weight"].get<double>(), sample["weights"][h][i][j].get<double>(), 2e-15) << name;
        }
        for (size_t d = 0; d < e["out"].size(); ++d)
          EXPECT_NEAR(e["out"][d].get<double>(), sample["out"][h][i][d].get<double>(), 2e-15) << name;
        const double lse = number_of(sample["lse"][h][i]);
        if (std::isinf(lse)) EXPECT_TRUE(e["log_sum_exp"].is_null()) << name;  // JSON has no infinity
        else EXPECT_NEAR(e["log_sum_exp"].get<double>(), lse, 2e-15) << name;
      }
    }
  }
}

/// The weights of a query, as many as there are.
std::vector<double> weights_of(const json& e) {
  std::vector<double> w;
  for (const json& key : e["keys"]) w.push_back(key["weight"]);
  return w;
}

TEST_F(ExplainCommand, FaultsOfTheExamplesHaveTheirNumbersToo) {  // worked out by hand in float64
  struct Row {
    const char* arguments;
    std::vector<double> weights;
  };
  for (const Row& r :
       {Row{"--example W4s", {.118500, .005900, .875601}}, Row{"--example W4d", {.253716, .056612, .689672}},
        Row{"--example W4q", {.317663, .644257, .038079}}, Row{"--example W4i", {0, .028318, .971682}},
        Row{"--example W4f", {.894285, .052857, .052857}}, Row{"--example W14", {1, 0, 0}},
        Row{"--example W5a", {.669762, .330238}}, Row{"--example W5b", {.9999776, .0000224}},
        Row{"--example W5c", {1, 0}}, Row{"--example W5d", {1, 0}}, Row{"--example W6", {.8, .2}},
        Row{"--example W22c --query 1", {.377541, .622459, 0}}}) {
    const std::vector<double> w = weights_of(explained(r.arguments));
    ASSERT_EQ(w.size(), r.weights.size()) << r.arguments;
    for (size_t n = 0; n < w.size(); ++n) EXPECT_NEAR(w[n], r.weights[n], 6e-7) << r.arguments;
  }
}

TEST_F(ExplainCommand, PositionsAsFarApartHaveTheSameDotProduct) {
  const double near_start = explained("--example W13 --query 0")["keys"][0]["dot"],
               later = explained("--example W13 --query 1")["keys"][1]["dot"];
  EXPECT_NEAR(near_start, 3.516271, 5e-7);
  EXPECT_NEAR(later, near_start, 1e-9);
}

TEST_F(ExplainCommand, APageShowsEveryStepWithItsNumbers) {
  EXPECT_THAT(page("--example W1c --query 1"),
              StartsWith("W1c: W1, causal: a token sees itself and what came before\n"
                         "qkv explain --q '1,2;2,1' --k '2,1;1,2' --v '3,0;0,3' --causal\n"
                         "\n"
                         "tensor  shape         type     bytes  rows sum to\n"
                         "q       {1, 1, 2, 2}  float64     32  3, 3\n"
                         "k       {1, 1, 2, 2}  float64     32  3, 3\n"
                         "v       {1, 1, 2, 2}  float64     32  3, 3\n"
                         "\n"
                         "Query 1 of head 0: causal | softmax\n"
                         "   q = [2, 1]\n"
                         "\n"
                         "1. Dot products   q · k = sum over d of q[d] · k[d]: how alike the query and each key are\n"
                         "   key  k                         q · k\n"
                         "   0    [2, 1]  2 · 2 + 1 · 1  =      5\n"
                         "   1    [1, 2]  2 · 1 + 1 · 2  =      4\n"
                         "\n"
                         "2. Scaled   s = q · k / sqrt(D), 1 / sqrt(2) = 0.707107\n"
                         "   key                          s\n"
                         "   0    0.707107 · 5  =  3.535534\n"
                         "   1    0.707107 · 4  =  2.828427\n"
                         "\n"
                         "3. Masks   a hidden key takes no part from here on\n"
                         "   key         s\n"
                         "   0    3.535534  visible\n"
                         "   1    2.828427  visible\n"
                         "\n"
                         "4. Maximum   m = 3.535534, of key 0\n"
                         "\n"
                         "5. Exponentials   exp(s - m); taking m off changes no weight, and nothing overflows\n"
                         "   key         s     exp(s)      s - m  exp(s - m)\n"
                         "   0    3.535534  34.313330          0           1\n"
                         "   1    2.828427  16.918829  -0.707107    0.493069\n"
                         "   sum            51.232159               1.493069\n"
                         "   log-sum-exp = m + ln(sum) = 3.535534 + ln(1.493069) = 3.936367\n"
                         "\n"
                         "6. Weights   w = exp(s - m) / sum\n"
                         "   key                                 w\n"
                         "   0           1 / 1.493069  =  0.669762\n"
                         "   1    0.493069 / 1.493069  =  0.330238\n"
                         "   sum                                 1\n"
                         "\n"
                         "7. Weighted values   out = sum of w · v\n"
                         "   key         w  v       w · v\n"
                         "   0    0.669762  [3, 0]  [2.009285, 0]\n"
                         "   1    0.330238  [0, 3]  [0, 0.990715]\n"
                         "   out                    [2.009285, 0.990715]\n"
                         "\n"
                         "weights: the library's forward() differs by "));
}

TEST_F(ExplainCommand, NegativeFactorsAreInParentheses) {
  EXPECT_THAT(page("--q '-1,-2' --k '-3,-4'"), HasSubstr("-1 · (-3) + (-2) · (-4)  =     11\n"));
}

TEST_F(ExplainCommand, NamesTheRuleThatHidAKeyAndEveryModifier) {
  const std::string text =
      page("--example W3 --query 0 --causal --softcap 2 --alibi --bias '1,0,0;0,0,0;0,0,0' --sinks 0.5 --zero-key");
  EXPECT_THAT(text, AllOf(HasSubstr("hidden by causal"), HasSubstr("Soft-cap   s = 2 tanh(s / 2)"),
                          HasSubstr("ALiBi   s = s - slope"), HasSubstr("Bias   s = s + bias"), HasSubstr("   sink "),
                          HasSubstr("zero key"), HasSubstr("its weight is lost")));
}

TEST_F(ExplainCommand, OfManyKeysTheStrongestAndTheRest) {
  const std::string text = page(kSample + " --layer 4 --head 7 --query 5 --top 3");
  EXPECT_THAT(text, AllOf(HasSubstr("13 keys; shown are the 3 strongest"), HasSubstr("not(4)"), HasSubstr("10 more"),
                          Not(HasSubstr("the(1)"))));
  const json all = explained(kSample + " --layer 4 --head 7 --query 5");
  EXPECT_EQ(all["keys"].size(), 13U);
  EXPECT_EQ(all["token"], "bad");
  EXPECT_NEAR(all["keys"][4]["weight"].get<double>(), 0.5577, 5e-5);
}

TEST_F(ExplainCommand, ProjectionsAreStepZero) {
  const std::string x = "--x '1,2,0' --wq '1,0;0,1;1,1' --wk '2,0;0,1;1,1' --wv '1,1;0,1;5,5' --heads 1";
  const std::string text = page(x);
  EXPECT_THAT(text, AllOf(HasSubstr("0. Projections   q = x wq"), HasSubstr("q[0]  1 · 1 + 2 · 0 + 0 · 1  =  1"),
                          HasSubstr("0    [2, 2]    [1, 3]")));
  EXPECT_EQ(explained(x)["out"], json({1.0, 3.0}));
  // torch.nn.Linear's way, by the sizes
  EXPECT_EQ(explained("--x '1,2,0' --wq '1,0,1;0,1,1' --wk '2,0,1;0,1,1' --wv '1,0,5;1,1,5' --heads 1")["out"],
            json({1.0, 3.0}));
  const json projected = explained(x + " --wo '1;10'");
  EXPECT_EQ(projected["projected"], json({31.0}));
}

TEST_F(ExplainCommand, SquareWeightsWantALayoutUnlessBothAreTheSame) {
  const std::string x = "--x '1,2' --wk '1,0;0,1' --wv '1,0;0,1' --heads 1 --wq '1,2;0,1'";
  expect_refusal("explain " + x, 2, "wq {2, 2} can be {in, out}");
  EXPECT_EQ(explained(x + " --weight-layout in_out")["q"], json({1.0, 4.0}));
  EXPECT_EQ(explained(x + " --weight-layout out_in")["q"], json({5.0, 2.0}));
}

TEST_F(ExplainCommand, WrongUseIsCodeTwoAndOneLine) {
  expect_refusal("explain", 2, "nothing to explain");
  expect_refusal("explain --example W99", 2, "expected one of W1, W1c");
  expect_refusal("explain --example W1 --query 2", 2, "--query 2: expected 0 to 1");
  expect_refusal("explain --example W1 --head 1", 2, "--head 1: expected 0 to 0");
  expect_refusal("explain " + kSample, 2, "say which, with --layer");
  expect_refusal("explain " + kSample + " --example W1", 2, "give one of them");
  expect_refusal("explain --q '1,2;3' --k '1,2'", 2, "q: row 1 has 1 numbers and row 0 has 2");
  expect_refusal("explain --q '1,two' --k '1,2'", 2, "expected a number, got 'two'");
  expect_refusal("explain --q '1,2' --k '1,2,3'", 2, "k");
  expect_refusal("explain --q '1,2' --x '1,2' --wq '1;2'", 2, "not both");
  expect_refusal("explain --x '1,2' --wq '1,2,3;4,5,6' --wk '1,2,3;4,5,6' --heads 2", 2, "do not make 2 heads");
  expect_refusal("explain --q 1 --k 1 --keep-mask 3", 2, "expected 0 or 1");
  expect_refusal("explain scaling --dims 0", 2, "--dims");
}

TEST_F(ExplainCommand, ScalingMeasuresWhatTheTextbooksSay) {
  const json all = explained("scaling --dims 8,512 --draws 2001");
  for (const json& d : all["dims"]) {
    const double dim = d["dim"];
    EXPECT_NEAR(d["variance"].get<double>() / dim, 1, 0.05);
    EXPECT_NEAR(d["scaled_variance"].get<double>(), 1, 0.05);
  }
  const json& wide = all["dims"][1];
  EXPECT_NEAR(wide["plain"]["largest"].get<double>(), 26, 1.5);
  EXPECT_GT(wide["plain"]["weights"][0].get<double>(), 0.9999);
  EXPECT_LT(wide["plain"]["jacobian_trace"].get<double>(), 1e-4);
  EXPECT_NEAR(wide["scaled"]["largest"].get<double>(), 1.1, 0.1);
  EXPECT_NEAR(wide["scaled"]["jacobian_trace"].get<double>(), 0.70, 0.02);
  const double expected[] = {.44, .24, .15, .09};
  for (size_t n = 0; n < 4; ++n) EXPECT_NEAR(wide["scaled"]["weights"][n].get<double>(), expected[n], 0.015);
}

}  // namespace
}  // namespace qkv::cli
