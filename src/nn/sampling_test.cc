#include "qkv/sampling.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>

#include "nn/test_support.h"
#include "qkv/array.h"
#include "qkv/error.h"
#include "qkv/init.h"

namespace qkv {
namespace {

using ::testing::HasSubstr;
constexpr double kInf = INFINITY;

int32_t one(const SamplingOptions& o, const std::vector<double>& logits, SamplingPlace place = {}) {
  int32_t token = -1;
  Sampler sampler(o);
  sampler(View<const double>(logits.data(), {1, int64_t(logits.size())}), place, {&token, {1}});
  return token;
}

/// How often each token is drawn in n steps.
std::map<int32_t, int> counts(const SamplingOptions& o, const std::vector<double>& logits, int n) {
  std::map<int32_t, int> all;
  for (int step = 0; step < n; ++step) ++all[one(o, logits, {.step = step, .sequence = step % 3})];
  return all;
}

/// sum (seen - expected)^2 / expected over tokens with an expectation; infinite where others were seen.
double chi_square(std::map<int32_t, int> seen, const std::map<int32_t, double>& shares, int n) {
  double sum = 0;
  for (const auto& [token, share] : shares) {
    const double off = seen[token] - share * n;
    sum += off * off / (share * n);
    seen.erase(token);
  }
  return seen.empty() ? sum : kInf;
}

constexpr int kDraws = 20000;
// The chance to exceed it is below 1e-4 with up to 4 degrees of freedom (Pearson 1900).
constexpr double kMost = 23.5;

TEST(Sampler, DrawsInProportionToTheSoftmax) {
  const std::vector<double> logits{std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.05), std::log(0.25)};
  EXPECT_LT(chi_square(counts({.seed = 1}, logits, kDraws), {{0, .1}, {1, .4}, {2, .2}, {3, .05}, {4, .25}}, kDraws),
            kMost);
}

TEST(Sampler, DividesByTheTemperature) {
  const std::vector<double> logits{0, std::log(3), std::log(2)};  // squares: 1, 9, 4
  EXPECT_LT(chi_square(counts({.temperature = 0.5, .seed = 2}, logits, kDraws),
                       {{0, 1 / 14.}, {1, 9 / 14.}, {2, 4 / 14.}}, kDraws),
            kMost);
}

TEST(Sampler, DrawsFromTheTopKAlone) {
  const std::vector<double> logits{std::log(1), std::log(4), std::log(2), std::log(3)};
  EXPECT_LT(chi_square(counts({.top_k = 2, .seed = 3}, logits, kDraws), {{1, 4 / 7.}, {3, 3 / 7.}}, kDraws), kMost);
  EXPECT_LT(chi_square(counts({.top_k = 9, .seed = 3}, logits, kDraws), {{0, .1}, {1, .4}, {2, .2}, {3, .3}}, kDraws),
            kMost);
}

TEST(Sampler, DrawsFromTheNucleusAlone) {
  const std::vector<double> logits{std::log(1), std::log(4), std::log(2), std::log(3)};  // ranked 1 3 2 0: .4 .7 .9 1
  EXPECT_LT(chi_square(counts({.top_p = 0.65, .seed = 4}, logits, kDraws), {{1, 4 / 7.}, {3, 3 / 7.}}, kDraws), kMost);
  EXPECT_LT(
      chi_square(counts({.top_p = 0.75, .seed = 4}, logits, kDraws), {{1, 4 / 9.}, {2, 2 / 9.}, {3, 3 / 9.}}, kDraws),
      kMost);
  // Shares are those among the top_k: 4/7 and 3/7.
  EXPECT_LT(chi_square(counts({.top_k = 2, .top_p = 0.5, .seed = 4}, logits, 100), {{1, 1}}, 100), kMost);
}

TEST(Sampler, TinyTopPLeavesTheLikeliest) {
  for (int step = 0; step < 50; ++step) EXPECT_EQ(one({.top_p = 1e-300, .seed = 5}, {0, 1, 1, 0.5}, {.step = step}), 1);
}

TEST(Sampler, TakesTheLowestOfEqualOnes) {
  EXPECT_EQ(one({.temperature = 0}, {1, 3, 2, 3}), 1);
  for (int step = 0; step < 50; ++step) {
    EXPECT_EQ(one({.top_k = 1}, {1, 3, 2, 3}, {.step = step}), 1);
    EXPECT_LE(one({.top_k = 2}, {3, 3, 3, 3}, {.step = step}), 1);
    EXPECT_LE(one({.top_p = 0.5}, {3, 3, 3, 3}, {.step = step}), 1);
  }
}

TEST(Sampler, NeverDrawsWhatIsMinusInfinity) {
  for (const SamplingOptions& o : {SamplingOptions{}, SamplingOptions{.top_k = 3}, SamplingOptions{.top_p = 0.99},
                                   SamplingOptions{.temperature = 1e-300}, SamplingOptions{.temperature = 0}})
    for (int step = 0; step < 50; ++step) EXPECT_EQ(one(o, {-kInf, -kInf, -1e30, -kInf}, {.step = step}), 2);
}

TEST(Sampler, HugeLogitsAreAsGoodAsSmallOnes) {
  EXPECT_LT(chi_square(counts({.seed = 6}, {1e308, -1e308, 1e308}, kDraws), {{0, .5}, {2, .5}}, kDraws), kMost);
}

TEST(Sampler, SameSeedSameTokensWhateverThreadsRowsAndType) {
  constexpr int64_t kRows = 37, kClasses = 129;
  Array logits(DType::kFloat32, {kRows, kClasses});
  fill_normal(logits.view(), 2, {.seed = 3});
  const Sampler sampler({.temperature = 1.5, .top_k = 60, .top_p = 0.9, .seed = 8});
  std::vector<int32_t> wanted(kRows), seen(kRows);
  ThreadPool alone(1);
  sampler(logits.view(), {.step = 4, .sequence = 10}, {wanted.data(), {kRows}}, {.executor = &alone});
  EXPECT_GT(std::set<int32_t>(wanted.begin(), wanted.end()).size(), 5U);
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    Workspace workspace;
    sampler(logits.view(), {.step = 4, .sequence = 10}, {seen.data(), {kRows}},
            {.executor = &pool, .workspace = &workspace});
    EXPECT_EQ(seen, wanted);
  }
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<double> numbers;
    for (int64_t c = 0; c < kClasses; ++c)
      numbers.push_back(double(static_cast<const float*>(logits.data())[row * kClasses + c]));
    EXPECT_EQ(one(sampler.options(), numbers, {.step = 4, .sequence = 10 + row}), wanted[size_t(row)]);
  }
}

TEST(Sampler, RefusesNonsense) {
  EXPECT_THROW(Sampler({.temperature = -1}), OptionError);
  EXPECT_THROW(Sampler({.temperature = NAN}), OptionError);
  EXPECT_THROW(Sampler({.temperature = kInf}), OptionError);
  EXPECT_THROW(Sampler({.top_k = -1}), OptionError);
  EXPECT_THROW(Sampler({.top_p = 0}), OptionError);
  EXPECT_THROW(Sampler({.top_p = 1.5}), OptionError);
  EXPECT_THROW(Sampler({.top_p = NAN}), OptionError);
  EXPECT_THROW(one({}, {}), ShapeError);
}

TEST(Sampler, RefusesLogitsThatAreNoNumbersAndWritesNothing) {
  const double logits[] = {0, 1, 0, NAN}, hidden[] = {-kInf, -kInf, kInf, 0};
  int32_t tokens[] = {7, 7};
  const Sampler sampler({});
  EXPECT_THAT(nn::testing::message_of<OptionError>([&] {
                sampler(View<const double>(logits, {2, 2}), {}, {tokens, {2}});
              }),
              HasSubstr("logits[1, 1] is nan"));
  EXPECT_THAT(nn::testing::message_of<OptionError>([&] {
                sampler(View<const double>(hidden, {2, 2}), {}, {tokens, {2}});
              }),
              HasSubstr("row 0 of logits has no number above -inf"));
  EXPECT_EQ(tokens[0], 7);
  EXPECT_THROW(sampler(View<const double>(logits, {2, 2}), {}, {tokens, {1}}), ShapeError);
}

}  // namespace
}  // namespace qkv
