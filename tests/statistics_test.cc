// Facts about rows, whole matrices and observers against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "qkv/masks.h"
#include "qkv/observers.h"
#include "tests/support/compare.h"
#include "tests/support/options.h"

namespace qkv::testing {
namespace {

/// Every optional output of forward() about rows.
struct Statistics {
  explicit Statistics(const Example& e, int n)
      : entropy(e.narrow(DType::kFloat32)),
        effective_keys(entropy),
        max_weight(entropy),
        mean_distance(entropy),
        sink_share(entropy),
        max_index(e.narrow(DType::kInt32)),
        visible_keys(max_index),
        top_weights(e.wide(DType::kFloat32, n)),
        top_indices(e.wide(DType::kInt32, n)) {
    forward(e.attention, e.inputs(),
            {.rows = {entropy.as<float>(), effective_keys.as<float>(), max_weight.as<float>(), max_index.as<int32_t>(),
                      mean_distance.as<float>(), sink_share.as<float>(), visible_keys.as<int32_t>(),
                      top_weights.as<float>(), top_indices.as<int32_t>()}});
  }
  Tensor entropy, effective_keys, max_weight, mean_distance, sink_share, max_index, visible_keys, top_weights,
      top_indices;
};

Case with_option(const Option& option, unsigned turn, int queries) {
  Case c{.dtype = kFloatTypes[turn % 4],
         .batch = 2,
         .queries = queries,
         .keys = 150,
         .head_dim = 7,
         .value_dim = 3,
         .seed = turn + 1};
  option.set(c);
  return c;
}

/// The order of top_weights: falling, ties to the lowest column.
std::vector<int> strongest(const std::vector<double>& weights) {
  std::vector<int> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weights[size_t(a)] > weights[size_t(b)]; });
  return order;
}

void expect_statistics(const Example& e, const char* option) {
  constexpr int kTop = 5;
  SCOPED_TRACE(option);
  const Statistics got(e, kTop);
  Bound entropy("entropy", DType::kFloat32), effective("effective keys", DType::kFloat32),
      largest("max weight", DType::kFloat32);
  Bound distance("mean distance", DType::kFloat32), share("sink share", DType::kFloat32),
      top("top weights", DType::kFloat32);
  double loosest = 1e-5;  // statistics have no bound of their own: entropies are sums of up to 150 terms
  for (const auto& r : Expected(e).rows) {
    const auto at = [&](const Tensor& t, int64_t n = 0) { return element(e, t, r.b, r.h, r.n, n); };
    EXPECT_NEAR(at(got.entropy), r.oracle.entropy, loosest);
    EXPECT_NEAR(at(got.effective_keys), r.oracle.effective_keys, loosest * (1 + r.oracle.effective_keys));
    EXPECT_NEAR(at(got.mean_distance), r.oracle.mean_distance, loosest * (1 + r.oracle.mean_distance));
    EXPECT_NEAR(at(got.sink_share), r.oracle.sink_share, loosest);
    EXPECT_EQ(at(got.visible_keys), r.oracle.visible_keys);
    largest.add(at(got.max_weight), r.plain.max_weight, r.oracle.max_weight);
    const std::vector<int> order = strongest(r.oracle.weights);
    std::vector<bool> used(r.oracle.weights.size(), false);
    for (int64_t n = 0; n < kTop; ++n) {
      const bool there = n < r.oracle.visible_keys;
      const auto column = int64_t(at(got.top_indices, n));
      if (!there) {
        EXPECT_EQ(at(got.top_weights, n), 0);
        EXPECT_EQ(column, -1);
        continue;
      }
      const auto rank = size_t(order[size_t(n)]);
      top.add(at(got.top_weights, n), r.plain.weights[rank], r.oracle.weights[rank]);
      ASSERT_TRUE(column >= 0 && size_t(column) < used.size());
      EXPECT_FALSE(used[size_t(column)]) << "a column twice";
      used[size_t(column)] = true;
      // Where two weights are nearly equal, either may come first.
      EXPECT_NEAR(r.oracle.weights[size_t(column)], r.oracle.weights[rank], 1e-5);
      if (n == 0) {
        EXPECT_EQ(at(got.max_index), double(column));
        EXPECT_EQ(at(got.max_weight), at(got.top_weights, 0));
      }
    }
    if (r.oracle.visible_keys == 0) {
      EXPECT_EQ(at(got.max_index), -1);
    }
  }
  EXPECT_TRUE(largest.holds());
  EXPECT_TRUE(top.holds());
}

TEST(Statistics, AgreeWithTheOracleForEveryOption) {
  unsigned turn = 0;
  for (const Option& option : options()) expect_statistics(Example(with_option(option, turn++, 37)), option.name);
}

TEST(Statistics, AgreeWithTheOracleWhenQueriesAreFew) {
  unsigned turn = 0;
  for (const Option& option : options()) expect_statistics(Example(with_option(option, turn++, 2)), option.name);
}

TEST(Statistics, OfLongRowsCrossTheMergeOfRunningSums) {
  for (const DType type : kFloatTypes)
    for (const int queries : {1, 30})
      expect_statistics(Example(Case{.dtype = type,
                                     .queries = queries,
                                     .keys = 4500,
                                     .head_dim = 5,
                                     .value_dim = 2,
                                     .causal = true,
                                     .align = Align::kBottomRight,
                                     .sinks = true}),
                        "long");
}

TEST(Statistics, OfEqualWeightsNameTheLowestColumn) {
  Example e(Case{.queries = 3, .keys = 300, .head_dim = 2, .value_dim = 2});
  e.query.fill(0);
  const Statistics got(e, 4);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.max_index.get(0, 0, i), 0);
    for (int64_t n = 0; n < 4; ++n) EXPECT_EQ(got.top_indices.get(0, 0, i, n), double(n));
    EXPECT_NEAR(got.entropy.get(0, 0, i), std::log(300.0), 1e-5);
    EXPECT_NEAR(got.effective_keys.get(0, 0, i), 300, 1e-2);
  }
}

TEST(Statistics, AreTheSameInPrefillAndDecode) {
  const Example e(Case{.group = 2, .queries = 150, .keys = 150, .head_dim = 7, .value_dim = 3, .causal = true});
  const Statistics whole(e, 3);
  for (const int32_t at : {0, 1, 77, 149}) {
    Example one = e;
    one.query = Tensor(DType::kFloat32, {1, 2, 1, 7}).fill([&](int64_t, int64_t h, int64_t, int64_t d) {
      return e.query.get(0, h, at, d);
    });
    one.query_offset = int32s({double(at)});
    const Statistics step(one, 3);
    for (const auto t :
         {&Statistics::entropy, &Statistics::max_weight, &Statistics::mean_distance, &Statistics::max_index,
          &Statistics::visible_keys, &Statistics::top_weights, &Statistics::top_indices, &Statistics::effective_keys})
      for (int64_t h = 0; h < 2; ++h) EXPECT_EQ((whole.*t).get(0, h, at), (step.*t).get(0, h, 0)) << at;
  }
}

TEST(Matrices, AgreeWithTheOracleForEveryOption) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    for (const int queries : {2, 37}) {
      const Example e(with_option(option, turn++, queries));
      SCOPED_TRACE(option.name);
      Tensor weights = e.matrix(), raw = e.matrix(), modified = e.matrix(), masked = e.matrix();
      forward(e.attention, e.inputs(),
              {.weights = weights.view(),
               .raw_scores = raw.view(),
               .modified_scores = modified.view(),
               .masked_scores = masked.view()});
      Bound bounds[] = {{"weights", e.lse_type()},
                        {"raw scores", e.lse_type()},
                        {"modified scores", e.lse_type()},
                        {"masked scores", e.lse_type()}};
      for (const auto& r : Expected(e).rows) {
        for (size_t j = 0; j < size_t(e.shape.keys); ++j) {
          const auto at = [&](const Tensor& t) { return t.get(r.b, r.h, r.i, int64_t(j)); };
          if (j >= r.oracle.weights.size()) {  // outside of a packed sequence
            EXPECT_EQ(at(weights), 0);
            EXPECT_EQ(at(masked), -std::numeric_limits<double>::infinity());
            continue;
          }
          bounds[0].add(at(weights), r.plain.weights[j], r.oracle.weights[j]);
          bounds[1].add(at(raw), r.plain.raw_scores[j], r.oracle.raw_scores[j]);
          bounds[2].add(at(modified), r.plain.modified_scores[j], r.oracle.modified_scores[j]);
          bounds[3].add(at(masked), r.plain.masked_scores[j], r.oracle.masked_scores[j]);
        }
      }
      for (const Bound& bound : bounds) EXPECT_TRUE(bound.holds()) << e.shape;
    }
  }
}

TEST(Matrices, OfChosenRowsAreThoseRows) {
  const Example e(Case{.batch = 2,
                       .group = 2,
                       .queries = 60,
                       .keys = 140,
                       .head_dim = 5,
                       .value_dim = 3,
                       .causal = true,
                       .align = Align::kBottomRight,
                       .softcap = 3});
  Tensor whole[4], some[4];
  for (Tensor& t : whole) t = e.matrix();
  for (Tensor& t : some) t = Tensor(DType::kFloat32, {2, 2, 3, 140});
  const Tensor rows = int32s({59, 0, 17});
  forward(e.attention, e.inputs(),
          {.weights = whole[0].view(),
           .raw_scores = whole[1].view(),
           .modified_scores = whole[2].view(),
           .masked_scores = whole[3].view()});
  forward(e.attention, e.inputs(),
          {.weights = some[0].view(),
           .raw_scores = some[1].view(),
           .modified_scores = some[2].view(),
           .masked_scores = some[3].view(),
           .matrix_rows = rows.as<int32_t>()});
  for (int64_t n = 0; n < 3; ++n)
    for (size_t t = 0; t < 4; ++t) {
      const auto i = int64_t(rows.get(n));
      EXPECT_TRUE(same_bits(slice(whole[t].view(), 2, i, i + 1), slice(some[t].view(), 2, n, n + 1)))
          << "row " << i << ", matrix " << t;
    }
}

TEST(Matrices, WeightsOfARowSumToOneLessTheSink) {
  const Example e(Case{.queries = 50, .keys = 140, .head_dim = 5, .value_dim = 3, .sinks = true});
  Tensor weights = e.matrix(), share = e.narrow(DType::kFloat32);
  forward(e.attention, e.inputs(), {.rows = {.sink_share = share.as<float>()}, .weights = weights.view()});
  for (int64_t i = 0; i < 50; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < 140; ++j) sum += weights.get(0, 0, i, j);
    EXPECT_NEAR(sum, 1 - share.get(0, 0, i), 1e-5);
  }
}

/// Collects what it sees, by pair.
struct Collect {
  std::map<std::vector<int>, double> own;
  void see(double weight, Site at) {
    if (weight != 0) own[{at.batch, at.head, at.row, at.column}] += weight;
  }
  void join(const Collect& later) {
    for (const auto& [where, weight] : later.own) own[where] += weight;
  }
};

TEST(Observers, SeeEveryWeightOnce) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    const Example e(with_option(option, turn++, 37));
    SCOPED_TRACE(option.name);
    Tensor row_max = e.lse(), row_sum = e.lse(), weights = e.matrix();
    forward(e.attention, e.inputs(), {.row_max = row_max.view(), .row_sum = row_sum.view(), .weights = weights.view()});
    Collect collect;
    observe(e.attention, e.inputs(), {row_max.view(), row_sum.view()}, {collect});
    int64_t count = 0;
    weights.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
      const double w = weights.get(b, h, i, j);
      if (std::isnan(w) || w == 0) return;  // rows past the end of a packed sequence may hold anything
      ++count;
      const auto found = collect.own.find({int(b), int(h), int(i), int(j)});
      ASSERT_NE(found, collect.own.end()) << b << " " << h << " " << i << " " << j;
      ASSERT_EQ(found->second, w) << b << " " << h << " " << i << " " << j;
    });
    EXPECT_EQ(count, int64_t(collect.own.size()));
  }
}

TEST(Observers, ReceivedAndPyramidAgreeWithTheWeights) {
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
    const Example e(Case{.dtype = type,
                         .batch = 2,
                         .group = 2,
                         .queries = 75,
                         .keys = 150,
                         .head_dim = 5,
                         .value_dim = 3,
                         .causal = true,
                         .align = Align::kBottomRight});
    Tensor row_max = e.lse(), row_sum = e.lse(), weights = e.matrix();
    forward(e.attention, e.inputs(), {.row_max = row_max.view(), .row_sum = row_sum.view(), .weights = weights.view()});
    Tensor received(DType::kFloat64, {2, 2, 150}), largest(DType::kFloat32, {2, 2, 10, 19}), mean = largest;
    Received column_sums(received.as<double>());
    Pyramid pyramid(largest.as<float>(), mean.as<float>(), 75, 150, 8);
    observe(e.attention, e.inputs(), {row_max.view(), row_sum.view()}, {column_sums, pyramid});
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t j = 0; j < 150; ++j) {
          double sum = 0;
          for (int64_t i = 0; i < 75; ++i) sum += weights.get(b, h, i, j);
          EXPECT_NEAR(received.get(b, h, j), sum, 1e-12 + 1e-9 * sum);
        }
        for (int64_t y = 0; y < 10; ++y)
          for (int64_t x = 0; x < 19; ++x) {
            double top = 0, sum = 0, cells = 0;
            for (int64_t i = y * 8; i < std::min<int64_t>(75, y * 8 + 8); ++i)
              for (int64_t j = x * 8; j < std::min<int64_t>(150, x * 8 + 8); ++j)
                top = std::max(top, weights.get(b, h, i, j)), sum += weights.get(b, h, i, j), ++cells;
            EXPECT_EQ(largest.get(b, h, y, x), double(float(top)));
            EXPECT_NEAR(mean.get(b, h, y, x), sum / cells, 1e-7);
          }
      }
  }
}

TEST(Observers, APictureShowsANanWhereverItStandsInItsCell) {
  Example e(Case{.queries = 40, .keys = 40, .head_dim = 2, .value_dim = 1});
  e.query.set(NAN, 0, 0, 13, 1);  // one row
  Tensor row_max = e.lse(), row_sum = e.lse(), largest(DType::kFloat32, {1, 1, 5, 5}), mean = largest;
  forward(e.attention, e.inputs(), {.row_max = row_max.view(), .row_sum = row_sum.view()});
  Pyramid pyramid(largest.as<float>(), mean.as<float>(), 40, 40, 8);
  observe(e.attention, e.inputs(), {row_max.view(), row_sum.view()}, {pyramid});
  for (int64_t y = 0; y < 5; ++y)
    for (int64_t x = 0; x < 5; ++x) {
      EXPECT_EQ(std::isnan(largest.get(0, 0, y, x)), y == 1);
      EXPECT_EQ(std::isnan(mean.get(0, 0, y, x)), y == 1);
    }
}

TEST(Observers, HaveTheSameBitsForAnyNumberOfThreads) {
  const Example e(Case{.batch = 2, .group = 2, .queries = 75, .keys = 700, .head_dim = 5, .value_dim = 3});
  Tensor row_max = e.lse(), row_sum = e.lse();
  forward(e.attention, e.inputs(), {.row_max = row_max.view(), .row_sum = row_sum.view()});
  Tensor wanted;
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    Tensor received(DType::kFloat64, {2, 2, 700});
    Received column_sums(received.as<double>());
    observe(e.attention, e.inputs(), {row_max.view(), row_sum.view()}, {column_sums}, {.executor = &pool});
    if (threads == 1) wanted = received;
    EXPECT_TRUE(same_bits(wanted, received)) << threads;
  }
}

TEST(KeepMaskOf, AgreesWithTheOracle) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    const Example e(with_option(option, turn++, 37));
    SCOPED_TRACE(option.name);
    Tensor keep(DType::kBool, {e.shape.batch, e.shape.query_heads(), e.shape.queries, e.shape.keys});
    keep_mask_of(e.attention, e.inputs(), keep.as<bool>());
    const Inputs in = e.inputs();
    const reference::Problem p(e.attention, in);
    keep.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
      const bool there = i < p.queries(b) && j < p.columns(b);
      ASSERT_EQ(keep.get(b, h, i, j), there && p.sees(p.site(b, h, i, j)) ? 1 : 0)
          << b << " " << h << " " << i << " " << j;
    });
  }
}

}  // namespace
}  // namespace qkv::testing
