#include "qkv/facts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "qkv/layer_of_file.h"
#include "qkv/links.h"

namespace qkv::cli {
namespace {

/// A problem of random queries and keys, as make_problem would give it.
Problem random_problem(Sizes s, Attention attention, unsigned seed) {
  Problem p;
  p.attention = std::move(attention);
  p.sizes = s;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  const auto tensor = [&](int64_t heads, int64_t rows) {
    p.memory.emplace_back(DType::kFloat32, std::vector<int64_t>{s.batch, heads, rows, s.dim});
    auto* x = static_cast<float*>(p.memory.back().data());
    for (int64_t n = 0; n < p.memory.back().size(); ++n) x[n] = normal(random);
    return p.memory.back().view();
  };
  p.inputs.query = tensor(s.heads, s.queries);
  p.inputs.key = tensor(s.key_heads, s.keys);
  p.inputs.value = tensor(s.key_heads, s.keys);
  return p;
}

Array weights_of(const Problem& p) {
  Array w(DType::kFloat32, {p.sizes.batch, p.sizes.heads, p.sizes.queries, p.sizes.keys});
  Outputs out;
  out.weights = w.view();
  forward(p.attention, p.inputs, out);
  return w;
}

void expect_same(const HeadFacts& a, const HeadFacts& b) {
  EXPECT_NEAR(a.entropy, b.entropy, 1e-5);
  EXPECT_NEAR(a.effective_keys, b.effective_keys, 1e-4);
  EXPECT_EQ(a.empty_rows, b.empty_rows);
  for (int p = 0; p < kPlaces; ++p) EXPECT_NEAR(a.share[p], b.share[p], 1e-6) << name(static_cast<Place>(p));
  ASSERT_EQ(a.links.size(), b.links.size());
  for (size_t n = 0; n < a.links.size(); ++n) {
    EXPECT_EQ(a.links[n].query, b.links[n].query);
    EXPECT_EQ(a.links[n].key, b.links[n].key);
    EXPECT_NEAR(a.links[n].weight, b.links[n].weight, 1e-6);
  }
}

TEST(Facts, ComputedInTheSweepAreThoseOfTheWeights) {
  const Attention formulas[] = {Attention(), Attention().visible(Causal{}).align(Align::kBottomRight),
                                Attention().visible(Window{3, 1}).align(Align::kBottomRight)};
  Progress progress;
  for (const Attention& formula : formulas) {
    for (const Sizes& s : {Sizes{2, 4, 2, 13, 13, 8, 8}, Sizes{1, 2, 2, 5, 140, 16, 16}, Sizes{1, 1, 1, 1, 7, 3, 3}}) {
      const Problem p = random_problem(s, Attention(formula).align(Align::kBottomRight), 7);
      const Array w = weights_of(p);
      for (int64_t b = 0; b < s.batch; ++b) {
        const auto swept = facts_of(p, b, 3, progress);
        ASSERT_EQ(swept.size(), static_cast<size_t>(s.heads));
        for (size_t h = 0; h < swept.size(); ++h) {
          const auto head = static_cast<int64_t>(h);
          expect_same(swept[h], facts_of_weights(w.view(), b, head, s.keys - s.queries, 3));
        }
      }
    }
  }
}

TEST(Facts, AHeadThatLooksBackIsFound) {
  const float w[] = {1, 0, 0, 1, 0, 0, 0.1F, 0.9F, 0};
  const HeadFacts f = facts_of_weights(View<const float>(w, {1, 1, 3, 3}), 0, 0, 0, 2);
  EXPECT_EQ(f.favourite(), Place::kPrevious);
  EXPECT_NEAR(f.of(Place::kPrevious), 0.95, 1e-6);  // (1 + 0.9) / 2: the first query has no previous key
  EXPECT_NEAR(f.of(Place::kSelf), 1.0 / 3, 1e-6);
  EXPECT_NEAR(f.of(Place::kNext), 0, 1e-6);
  EXPECT_NEAR(f.entropy, -(0.1 * std::log(0.1) + 0.9 * std::log(0.9)) / 3, 1e-6);
  ASSERT_EQ(f.links.size(), 2U);
  EXPECT_EQ(f.links[0].query, 0);
  EXPECT_EQ(f.links[1].query, 1);
}

TEST(Facts, RowsThatSeeNothingAreCountedAndLeftOut) {
  const float w[] = {0, 0, 0.5F, 0.5F};
  const HeadFacts f = facts_of_weights(View<const float>(w, {1, 1, 2, 2}), 0, 0, 0, 1);
  EXPECT_EQ(f.empty_rows, 1);
  EXPECT_NEAR(f.entropy, std::log(2.0), 1e-6);
  EXPECT_NEAR(f.effective_keys, 2, 1e-6);
}

TEST(Facts, PaddedQueriesAreLeftOutHoweverThePaddingIsSaid) {
  const Sizes s{1, 2, 2, 6, 6, 4, 4};
  Problem lengths = random_problem(s, Attention(), 3), mask = random_problem(s, Attention().visible(KeepMask{}), 3);
  const int32_t four = 4;
  const bool keep[] = {true, true, true, true, false, false};
  lengths.inputs.key_lengths = View<const int32_t>(&four, {1});
  mask.inputs.keep_mask = View<const bool>(keep, {1, 1, 1, 6});
  const Array w = weights_of(lengths);
  Progress progress;
  const auto a = facts_of(lengths, 0, 2, progress), b = facts_of(mask, 0, 2, progress);
  const HeadFacts alone = [&] {
    View<const void> part = w.view();
    part.shape[2] = part.shape[3] = 4;
    return facts_of_weights(part, 0, 0, 0, 2);
  }();
  EXPECT_EQ(a.front().padding_rows, 2);
  expect_same(a.front(), b.front());
  EXPECT_NEAR(a.front().entropy, alone.entropy, 1e-5);
  EXPECT_NEAR(a.front().of(Place::kFirst), alone.of(Place::kFirst), 1e-6);
  EXPECT_NEAR(a.front().of(Place::kLast), alone.of(Place::kLast), 1e-6);
}

/// A layer whose weights are those given, through a file.
class LinksOf3x3 : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::string(::testing::TempDir()) + "links.npy";
    const float w[] = {0.5F, 0.5F, 0, 0.1F, 0.2F, 0.7F, 0.2F, 0.6F, 0.2F};
    write_npy(path_, View<const float>(w, {3, 3}));
    layer_.emplace(layer_of(Dump(path_), AttentionOptions(), -1, WeightsFrom::kFile, progress_));
  }
  void TearDown() override { std::remove(path_.c_str()); }
  std::string path_;
  Progress progress_;
  std::optional<Layer> layer_;
};

TEST_F(LinksOf3x3, UsualIsTheLargerMeanOfColumnAndDiagonal) {
  const auto links = links_between(*layer_, 0, 0, {false, true, false}, {false, false, true});
  ASSERT_EQ(links.size(), 1U);
  EXPECT_NEAR(links[0].usual, 0.5, 1e-6);  // others on the diagonal: 0.5; others in the column that see it: 0.2
}

TEST_F(LinksOf3x3, SurpriseLeavesOutTheFirstKeyAndItself) {
  const auto links = rank_links(*layer_, 0, 0, 10, Rank::kSurprise);
  ASSERT_EQ(links.size(), 3U);
  EXPECT_EQ(links[0].link.query, 2);  // 0.6 - 0.35: the column's other weights are 0.5 and 0.2
  EXPECT_EQ(links[0].link.key, 1);
  EXPECT_NEAR(links[0].usual, 0.35, 1e-6);
  EXPECT_EQ(links[1].link.query, 1);
  EXPECT_EQ(links[2].link.query, 0);
}

TEST_F(LinksOf3x3, ByWeightTheLargestIsFirst) {
  const auto links = rank_links(*layer_, 0, -1, 2, Rank::kWeight);
  ASSERT_EQ(links.size(), 2U);
  EXPECT_NEAR(links[0].link.weight, 0.7, 1e-6);
  EXPECT_NEAR(links[1].link.weight, 0.6, 1e-6);
}

}  // namespace
}  // namespace qkv::cli
