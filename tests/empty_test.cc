// Rows that see nothing, tensors without elements, and output that is written completely.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/options.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

void expect_empty_row(const Example& e, const Result& r, int64_t b, int64_t h, int64_t i, double lse) {
  for (int64_t d = 0; d < e.shape.value_dim; ++d) {
    const double x = r.out.get(b, h, i, d);
    EXPECT_TRUE(x == 0 && !std::signbit(x)) << "out " << b << " " << h << " " << i << " " << d << " is " << x;
  }
  if (lse == -kInf || lse == 0) {
    EXPECT_EQ(r.lse.get(b, h, i), lse) << b << " " << h << " " << i;
  } else {
    EXPECT_NEAR(r.lse.get(b, h, i), lse, 4 * epsilon(e.lse_type()) * std::abs(lse)) << b << " " << h << " " << i;
  }
}

TEST(EmptyRows, AreZeroWithLogSumExpOfTheSink) {
  for (const DType type : kFloatTypes) {
    for (const int queries : {2, 40}) {
      for (const int kind : {0, 1, 2, 3}) {
        Case c{.dtype = type,
               .group = 2,
               .queries = queries,
               .keys = 50,
               .head_dim = 6,
               .value_dim = 3,
               .keep_mask = true,
               .sinks = (kind & 1) != 0,
               .zero_key = (kind & 2) != 0};
        Example e(c);
        for (int64_t j = 0; j < 50; ++j) e.keep_mask.set(0, 0, 1, 1, j);
        const double sink = c.sinks ? e.sinks.get(1) : -kInf;
        const double lse = !c.zero_key ? sink : std::log(1 + std::exp(sink));
        const Result r = run(e);
        expect_empty_row(e, r, 0, 1, 1, lse);
        EXPECT_TRUE(within_bound(e, r)) << c;
      }
    }
  }
}

TEST(EmptyRows, ComeFromMoreQueriesThanKeys) {
  // Bottom right with 5 queries and 2 keys: the first three stand before the first key.
  const Example e(
      Case{.queries = 5, .keys = 2, .head_dim = 3, .value_dim = 4, .causal = true, .align = Align::kBottomRight});
  const Result r = run(e);
  for (int64_t i = 0; i < 3; ++i) expect_empty_row(e, r, 0, 0, i, -kInf);
  EXPECT_TRUE(within_bound(e, r));
}

TEST(EmptyRows, ComeFromAKeyLengthOfZero) {
  Example e(Case{.batch = 2, .queries = 4, .keys = 6, .head_dim = 3, .value_dim = 2, .key_lengths = true});
  e.key_lengths = int32s({0, 6});
  const Result r = run(e);
  for (int64_t i = 0; i < 4; ++i) expect_empty_row(e, r, 0, 0, i, -kInf);
  EXPECT_TRUE(within_bound(e, r));
}

TEST(EmptyRows, AreCountedInTheStatistics) {
  Example e(Case{.queries = 3, .keys = 4, .head_dim = 2, .value_dim = 2, .keep_mask = true});
  e.keep_mask.fill([](int64_t, int64_t, int64_t i, int64_t) { return i != 1; });
  Tensor entropy = e.narrow(DType::kFloat32), effective = e.narrow(DType::kFloat32),
         largest = e.narrow(DType::kFloat32);
  Tensor distance = e.narrow(DType::kFloat32), share = e.narrow(DType::kFloat32);
  Tensor index = e.narrow(DType::kInt32), visible = e.narrow(DType::kInt32);
  Tensor top = e.wide(DType::kFloat32, 6), top_index = e.wide(DType::kInt32, 6), out = e.out();
  forward(e.attention, e.inputs(),
          {.out = out.view(),
           .rows = {entropy.as<float>(), effective.as<float>(), largest.as<float>(), index.as<int32_t>(),
                    distance.as<float>(), share.as<float>(), visible.as<int32_t>(), top.as<float>(),
                    top_index.as<int32_t>()}});
  for (const Tensor* t : {&entropy, &effective, &largest, &distance, &share, &visible}) EXPECT_EQ(t->get(0, 0, 1), 0);
  EXPECT_EQ(index.get(0, 0, 1), -1);
  EXPECT_EQ(visible.get(0, 0, 0), 4);
  for (int64_t n = 0; n < 6; ++n) {
    EXPECT_EQ(top.get(0, 0, 1, n), 0);
    EXPECT_EQ(top_index.get(0, 0, 1, n), -1);
    if (n >= 4) {
      EXPECT_EQ(top_index.get(0, 0, 0, n), -1);
    }
  }
}

TEST(EmptyTensors, GiveEmptyResults) {
  const Case full{.batch = 2, .key_heads = 2, .queries = 3, .keys = 4, .head_dim = 5, .value_dim = 6};
  for (const auto field : {&Case::batch, &Case::queries, &Case::value_dim}) {
    Case c = full;
    c.*field = 0;
    const Example e(c);
    EXPECT_NO_THROW(run(e)) << c;
    if (field == &Case::value_dim) {
      EXPECT_TRUE(within_bound(e, run(e))) << "log-sum-exp is there without values";
    }
  }
}

TEST(EmptyTensors, OfNullDataAreFine) {
  const View<const float> nothing(nullptr, {1, 1, 0, 4});
  const View<float> out(nullptr, {1, 1, 0, 4});
  EXPECT_NO_THROW(forward(Attention{}, {.query = nothing, .key = nothing, .value = nothing}, {.out = out}));
}

TEST(EmptyTensors, WithoutKeysEveryRowIsEmpty) {
  for (const DType type : kFloatTypes)
    for (const int queries : {1, 30})
      for (const bool causal : {false, true}) {
        const Example e(Case{
            .dtype = type, .batch = 2, .queries = queries, .keys = 0, .head_dim = 3, .value_dim = 4, .causal = causal});
        const Result r = run(e);
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t i = 0; i < queries; ++i) expect_empty_row(e, r, b, 0, i, -kInf);
      }
}

TEST(EmptyTensors, WithoutHeadDimTheMeanOfTheVisibleValues) {
  for (const DType type : kFloatTypes)
    for (const int queries : {1, 30}) {
      const Example e(Case{.dtype = type,
                           .queries = queries,
                           .keys = 33,
                           .head_dim = 0,
                           .value_dim = 4,
                           .causal = true,
                           .align = Align::kBottomRight});
      EXPECT_TRUE(within_bound(e, run(e))) << e.shape;
    }
  Example two(Case{.queries = 1, .keys = 2, .head_dim = 0, .value_dim = 1});
  two.value.set(1, 0, 0, 0, 0), two.value.set(4, 0, 0, 1, 0);
  EXPECT_EQ(run(two).out.get(0, 0, 0, 0), 2.5);
}

TEST(EmptyTensors, PackedSequencesMayBeEmpty) {
  Example e(Case{.batch = 3, .queries = 4, .keys = 5, .head_dim = 2, .value_dim = 2, .packed = true});
  e.cumulative_query_lengths = int32s({0, 0, 4, 4});
  e.cumulative_key_lengths = int32s({0, 2, 2, 5});
  e.query = Tensor(DType::kFloat32, {4, 1, 2}).normal(1);
  e.key = Tensor(DType::kFloat32, {5, 1, 2}).normal(2);
  e.value = Tensor(DType::kFloat32, {5, 1, 2}).normal(3);
  const Result r = run(e);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(r.out.get(i, 0, 0), 0);
    EXPECT_EQ(r.lse.get(i, 0), -kInf);
  }
}

TEST(EmptyTensors, WithoutKeyHeadsAreRefused) {
  const Tensor query = Tensor(DType::kFloat32, {1, 2, 3, 4}).fill(0), key(DType::kFloat32, {1, 0, 3, 4});
  Tensor out(DType::kFloat32, {1, 2, 3, 4});
  EXPECT_THROW(
      forward(Attention{}, {.query = query.view(), .key = key.view(), .value = key.view()}, {.out = out.view()}),
      ShapeError);
}

TEST(Output, IsWrittenCompletelyAndNothingElse) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    Case c{.dtype = kFloatTypes[turn % 4],
           .batch = 2,
           .queries = 27,
           .keys = 31,
           .head_dim = 4,
           .value_dim = 5,
           .seed = ++turn};
    option.set(c);
    const Example e(c);
    const Result r = run(e, {}, Placement::kGaps);
    r.out.each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
      ASSERT_FALSE(std::isnan(r.out.get(i, j, k, l))) << option.name << " " << i << " " << j << " " << k << " " << l;
    });
    // The three elements between rows still hold what they held.
    const View<const void> out = r.out.view();
    const size_t element = size_of(out.dtype);
    const int rank = out.rank;
    for (int64_t row = 0; row < out.size() / c.value_dim; ++row) {
      const char* gap =
          static_cast<const char*>(out.data) + (row * out.strides[size_t(rank - 2)] + c.value_dim) * int64_t(element);
      for (size_t n = 0; n < 3 * element; ++n) ASSERT_EQ(gap[n], char(0xFF)) << option.name << ", behind row " << row;
    }
  }
}

}  // namespace
}  // namespace qkv::testing
