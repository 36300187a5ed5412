// What each link adds to a loss: qkv see --gradient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include <nlohmann/json.hpp>

#include "qkv/attribution.h"
#include "qkv/command_fixture.h"
#include "qkv/part.h"
#include "qkv/problem_of_case.h"
#include "qkv/shade.h"
#include "tests/support/backward.h"

namespace qkv::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Attribution, IsWeightTimesGradientAndSumsToThatOfTheOutput) {
  for (const testing::Case& c : small_cases()) {
    const testing::Example example(c);
    const testing::Loss loss(example);
    const testing::Left left(example);
    Problem p = problem_of(example);
    p.dout = loss.dout.view();
    const int64_t b = c.seed % c.batch, h = c.seed % c.query_heads();
    Progress progress;
    const Attribution a = attribution_of(part_of(p, {.batch = b, .head = h}), 1000, progress);
    double right = 0, size = 0, cells = 0, links = 0;
    for (int64_t i = 0; i < queries_of(p, b); ++i) {
      for (int64_t d = 0; d < c.value_dim; ++d) {
        const double term = element(row_of(p, left.out.view(), b, h, i), 0, 0, 0, d) *
                            element(row_of(p, loss.dout.view(), b, h, i), 0, 0, 0, d);
        right += term, size += std::abs(term);
      }
    }
    for (const float x : a.picture.values) cells += x;
    for (const AttributedLink& link : a.links) links += link.share();
    const double near = 8 * testing::epsilon(c.dtype) * (1 + size);
    EXPECT_NEAR(a.sum, right, near) << c;
    EXPECT_NEAR(links, right, near) << c;
    EXPECT_NEAR(cells, right, near + 1e-5) << c;
  }
}

TEST(Attribution, OfLongInputsACellIsTheLargestInSize) {
  constexpr int64_t kLength = 1100;
  const Array q(DType::kFloat32, {1, 1, kLength, 1}), k(DType::kFloat32, {1, 1, kLength, 1});
  Array v(DType::kFloat32, {1, 1, kLength, 1}), dout(DType::kFloat32, {1, 1, kLength, 1});
  static_cast<float*>(v.data())[701] = -kLength;  // all weights are 1 / kLength
  static_cast<float*>(v.data())[700] = 1;
  static_cast<float*>(dout.data())[900] = 3;
  Problem p;
  p.inputs.query = q.view(), p.inputs.key = k.view(), p.inputs.value = std::as_const(v).view();
  p.dout = std::as_const(dout).view();
  p.sizes = {1, 1, 1, kLength, kLength, 1, 1};
  Progress progress;
  const Attribution a = attribution_of(p, 1, progress);
  EXPECT_EQ(a.picture.unit, 2);
  EXPECT_NEAR(a.picture.values[a.picture.at(450, 350)], -3, 1e-5);
  ASSERT_EQ(a.links.size(), 1U);
  EXPECT_EQ(a.links[0].query, 900);
  EXPECT_EQ(a.links[0].key, 701);
  EXPECT_NEAR(a.links[0].gradient, -3.0 * kLength, 1e-3);
}

TEST(Shade, OfSignedNumbersHasZeroInTheMiddleAndCountsInAPowerOfTen) {
  const Shade shade({-0.02F, 0.01F}, 100, Scale::kSigned);
  EXPECT_EQ(shade.place(0), 0.5);
  EXPECT_EQ(shade.place(-0.02F), 0);
  EXPECT_EQ(shade.place(0.01F), 0.75);
  EXPECT_EQ(shade.darkest(), -0.02F);
  EXPECT_EQ(shade.brightest(), 0.02F);
  EXPECT_NEAR(*shade.unit(), 1e-3, 1e-12);
  EXPECT_NEAR(*Shade({0, 0.9999F}, 100, Scale::kSigned).unit(), 0.1, 1e-12);
  EXPECT_EQ(Shade({0, 0}, 100, Scale::kSigned).place(0), 0.5);
}

class SeeGradient : public Command {
 protected:
  std::string see(const std::string& arguments, const std::string& variables = "") const {
    return output_of("see --gradient " + arguments, variables);
  }
  // Query 0 sees key 0 alone, query 1 both alike.
  const std::string typed_ = "--q '0;0' --k '1;1' --v '-1;3' --causal --dout '1;2'";
};

TEST_F(SeeGradient, AHeadIsAMapItsSumAndTheLinksThatCountMost) {
  EXPECT_EQ(see(typed_ + " --tokens a,b"),
            "head 0: each row is a query and says what its keys add to the loss, weight times gradient\n"
            "\n"
            "       a   b\n"
            "       0   1\n"
            "0 a  -10  //\n"
            "1 b  -10  30\n"
            "    weight times gradient -3 to 3, linear scale, 0 in the middle; numbers in units of 0.1; / hidden\n"
            "\n"
            "All links together: 1, the sum of dout · out.\n"
            "\n"
            "Links that add or take most\n"
            "query      key   weight  gradient  product\n"
            " b(1)  ->  b(1)   0.500         6        3\n"
            " a(0)  ->  a(0)   1.000        -1       -1\n"
            " b(1)  ->  a(0)   0.500        -2       -1\n"
            "gradient: dout · v of the key, by how much the loss grows with the weight\n");
}

TEST_F(SeeGradient, JsonAndSentencesHaveTheSameNumbers) {
  const json all = json::parse(see(typed_ + " --json --top 2"));
  EXPECT_EQ(all["sum"], 1.0);
  ASSERT_EQ(all["links"].size(), 2U);
  EXPECT_EQ(all["links"][0], json({{"query", 1}, {"key", 1}, {"weight", 0.5}, {"gradient", 6.0}, {"product", 3.0}}));
  EXPECT_EQ(see(typed_ + " --plain --top 1"),
            "Head 0: what its links add to the loss, weight times gradient; together 1.\n"
            "1 to 1: 3, of weight 0.500 and gradient 6.\n");
}

TEST_F(SeeGradient, IsDrawnOfOneHeadOrOfAll) {
  const std::string sample = kSample + " --dout 1";
  EXPECT_THAT(see(sample + " --layer 4 --head 7 --png " + file("h.png")),
              AllOf(HasSubstr("weight times gradient from -"), HasSubstr(" (blue) to "),
                    HasSubstr(" (brown), linear scale, 0 in the middle")));
  EXPECT_THAT(see(sample + " --png " + file("all.png")), HasSubstr("layers 0 to 5 from the top"));
  EXPECT_THAT(see(sample + " --grid"), HasSubstr("weight times gradient -"));
}

TEST_F(SeeGradient, ColoursDivergeFromZero) {
  const std::string text = see(typed_ + " --color always", "COLORTERM=truecolor");
  EXPECT_THAT(text, AllOf(HasSubstr("\x1b[48;2;120;50;0m"), Not(HasSubstr("\x1b[48;2;254;232;56m"))));
}

TEST_F(SeeGradient, WrongUseIsCodeTwoAndOneLine) {
  expect_refusal("see --gradient --q 1 --k 1 --v 1", 2, "dout is missing, the gradient of a loss by out; give --dout");
  expect_refusal("see --gradient --q 1 --k 1 --dout 1", 2, "give v too");
  expect_refusal("see --q 1 --k 1 --v 1 --dout 1", 2, "--dout requires --gradient");
  expect_refusal("see --gradient " + kSample + " --dout 1", 2, "--gradient: say of which head");
  expect_refusal("see --gradient " + kSample + " --dout 1 --grid --json", 2, "--gradient --grid is a picture");
  expect_refusal("see --gradient " + typed_ + " --row 0", 2, "leave --row out");
  expect_refusal("see --gradient " + typed_ + " --scale lift", 2, "leave --scale log or lift out");
  const float w[] = {0.5F, 0.5F};
  write_npy(file("w.npy"), View<const float>(w, {1, 2}));
  expect_refusal("see --gradient " + file("w.npy") + " --head 0 --dout 1", 2, "the file has weights only");
}

}  // namespace
}  // namespace qkv::cli
