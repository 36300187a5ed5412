#include "qkv/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "qkv/error.h"
#include "tests/support/message.h"
#include "tests/support/tensor.h"

namespace qkv {
namespace {

using testing::message_of;
using testing::Placement;
using testing::Tensor;
using testing::tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One row of one head, of any number of parts.
struct Row {
  std::vector<Tensor> outs, sums;

  Row& part(DType type, const std::vector<double>& out, double lse) {
    outs.push_back(tensor(type, {1, 1, 1, int64_t(out.size())}, out));
    sums.push_back(tensor(type == DType::kFloat64 ? type : DType::kFloat32, {1, 1, 1}, {lse}));
    return *this;
  }
  /// out..., then lse.
  std::vector<double> merged(DType type, int64_t width, const Tensor& sinks = {}) const {
    std::vector<Partial> parts;
    for (size_t n = 0; n < outs.size(); ++n) parts.push_back({outs[n].view(), sums[n].view()});
    Tensor out(type, {1, 1, 1, width}), lse(DType::kFloat64, {1, 1, 1});
    merge_partials(parts, sinks.view(), out.view(), lse.view());
    std::vector<double> row;
    for (int64_t e = 0; e < width; ++e) row.push_back(out.get(0, 0, 0, e));
    row.push_back(lse.get(0));
    return row;
  }
};

TEST(MergePartials, HandComputedValues) {
  // exp(lse) of 1 and 3: weights 1/4 and 3/4
  const auto got =
      Row().part(DType::kFloat64, {1, 8}, 0).part(DType::kFloat64, {5, 0}, std::log(3)).merged(DType::kFloat64, 2);
  EXPECT_NEAR(got[0], 4, 1e-15);
  EXPECT_NEAR(got[1], 2, 1e-15);
  EXPECT_NEAR(got[2], std::log(4), 1e-15);
}

TEST(MergePartials, SinksAreCountedOnce) {
  const Tensor sinks = tensor(DType::kFloat32, {1}, {std::log(4)});
  const auto got =
      Row().part(DType::kFloat64, {1}, 0).part(DType::kFloat64, {5}, std::log(3)).merged(DType::kFloat64, 1, sinks);
  EXPECT_NEAR(got[0], 2, 1e-7) << "(1 * 1 + 3 * 5) / (1 + 3 + 4)";
  EXPECT_NEAR(got[1], std::log(8), 1e-7);
}

TEST(MergePartials, APartThatSawNothingAddsNothingWhateverItsOutHolds) {
  for (double garbage : {double(NAN), kInfinity, 7.0}) {
    const auto got =
        Row().part(DType::kFloat32, {garbage}, -kInfinity).part(DType::kFloat32, {5}, 2).merged(DType::kFloat32, 1);
    EXPECT_EQ(got, (std::vector<double>{5, 2})) << garbage;
  }
}

TEST(MergePartials, WhereNobodySawAnythingOutIsZeroAndTheSumThatOfTheSink) {
  const Row nothing = Row().part(DType::kFloat32, {NAN}, -kInfinity).part(DType::kFloat32, {3}, -kInfinity);
  EXPECT_EQ(nothing.merged(DType::kFloat32, 1), (std::vector<double>{0, -kInfinity}));
  EXPECT_EQ(nothing.merged(DType::kFloat32, 1, tensor(DType::kFloat32, {1}, {-3.5})), (std::vector<double>{0, -3.5}));
  EXPECT_EQ(nothing.merged(DType::kFloat32, 1, tensor(DType::kFloat32, {1}, {-kInfinity})),
            (std::vector<double>{0, -kInfinity}));
  EXPECT_EQ(Row().merged(DType::kFloat32, 1), (std::vector<double>{0, -kInfinity})) << "no parts";
}

TEST(MergePartials, HugeSumsDoNotOverflow) {
  for (double far : {1e4, -1e4, 1e30}) {
    const auto got = Row().part(DType::kFloat32, {1}, far).part(DType::kFloat32, {3}, far).merged(DType::kFloat32, 1);
    EXPECT_EQ(got[0], 2) << far;
    EXPECT_NEAR(got[1], far, 1 + std::abs(far) * 1e-7) << far;
  }
}

TEST(MergePartials, ANanMakesItsRowNan) {
  EXPECT_TRUE(
      std::isnan(Row().part(DType::kFloat32, {1}, NAN).part(DType::kFloat32, {1}, 2).merged(DType::kFloat32, 1)[0]));
  EXPECT_TRUE(
      std::isnan(Row().part(DType::kFloat32, {1}, 2).part(DType::kFloat32, {1}, NAN).merged(DType::kFloat32, 1)[0]));
  EXPECT_TRUE(
      std::isnan(Row().part(DType::kFloat32, {NAN}, 2).part(DType::kFloat32, {1}, 2).merged(DType::kFloat32, 1)[0]));
  const Tensor sinks = tensor(DType::kFloat32, {1}, {NAN});
  EXPECT_TRUE(std::isnan(Row().part(DType::kFloat32, {1}, -kInfinity).merged(DType::kFloat32, 1, sinks)[1]));
}

TEST(MergePartials, OnePartComesBackAsItIs) {
  const auto got = Row().part(DType::kBFloat16, {0.1, -3}, -1.25).merged(DType::kBFloat16, 2);
  EXPECT_EQ(got, (std::vector<double>{float(bfloat16(0.1f)), -3, -1.25}));
}

/// Three heads with Dv 4 in any placement, against the equation; packed batches have an axis less.
void check_placement(Placement placement, bool packed, int threads) {
  const std::vector<int64_t> shape = packed ? std::vector<int64_t>{70, 3, 4} : std::vector<int64_t>{2, 3, 35, 4};
  const std::vector<int64_t> rows(shape.begin(), shape.end() - 1);
  Tensor a(DType::kFloat64, shape, placement), b(DType::kFloat64, shape), out(DType::kFloat64, shape, placement);
  Tensor la(DType::kFloat64, rows), lb(DType::kFloat64, rows, placement), lse(DType::kFloat64, rows);
  a.normal(1), b.normal(2), la.normal(3), lb.normal(4);
  const Tensor sinks = tensor(DType::kFloat64, {3}, {0.5, -1, 2});
  const Partial parts[] = {{a.view(), la.view()}, {b.view(), lb.view()}};
  ThreadPool pool(threads);
  merge_partials(parts, sinks.view(), out.view(), lse.view(), {.executor = &pool});
  out.each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
    const double x = packed ? la.get(i, j) : la.get(i, j, k), y = packed ? lb.get(i, j) : lb.get(i, j, k);
    const double sum = std::exp(x) + std::exp(y) + std::exp(sinks.get(j));
    ASSERT_NEAR(out.get(i, j, k, l), (std::exp(x) * a.get(i, j, k, l) + std::exp(y) * b.get(i, j, k, l)) / sum, 1e-14);
    ASSERT_NEAR(packed ? lse.get(i, j) : lse.get(i, j, k), std::log(sum), 1e-14);
  });
}

TEST(MergePartials, TakesAnyStridesPackedBatchesAndThreads) {
  for (Placement placement : testing::kPlacements) check_placement(placement, false, 1);
  check_placement(Placement::kContiguous, true, 1);
  check_placement(Placement::kReversed, true, 3);
}

TEST(MergePartials, WritesNoSumWhereNoneIsAskedFor) {
  const Tensor part = tensor(DType::kFloat32, {1, 1, 1, 1}, {4}), sum = tensor(DType::kFloat32, {1, 1, 1}, {0});
  Tensor out(DType::kFloat16, {1, 1, 1, 1});
  const Partial parts[] = {{part.view(), sum.view()}};
  merge_partials(parts, {}, out.view(), {});
  EXPECT_EQ(out.get(0), 4);
}

TEST(MergePartialsErrors, NameWhatIsMissing) {
  const Tensor part(DType::kFloat32, {1, 2, 3, 4}), sum(DType::kFloat32, {1, 2, 3});
  Tensor out(DType::kFloat32, {1, 2, 3, 4});
  const auto merge = [&](Partial second, View<void> to) {
    const Partial parts[] = {{part.view(), sum.view()}, second};
    return message_of<OptionError>([&] { merge_partials(parts, {}, to, {}); });
  };
  EXPECT_EQ(merge({part.view(), {}}, out.view()),
            "merge_partials: parts[1].lse is missing; ask forward() for it and pass it on");
  EXPECT_EQ(merge({{}, sum.view()}, out.view()), "merge_partials: parts[1].out is missing; pass a view");
  EXPECT_EQ(merge({part.view(), sum.view()}, {}), "merge_partials: out is missing; pass a view");
}

TEST(MergePartialsErrors, NameThePartExpectedAndGot) {
  const Tensor good(DType::kFloat32, {1, 2, 3, 4}), sum(DType::kFloat32, {1, 2, 3}), sinks(DType::kFloat32, {3});
  const Tensor narrow(DType::kFloat32, {1, 2, 3, 5}), half(DType::kFloat16, {1, 2, 3}),
      whole(DType::kInt64, {1, 2, 3, 4});
  Tensor out(DType::kFloat32, {1, 2, 3, 4}), flat(DType::kFloat32, {3, 4}), lse(DType::kFloat32, {1, 2, 3});
  const auto merge = [&](const Tensor& second, const Tensor& second_sum, const Tensor& sink, Tensor& to) {
    const Partial parts[] = {{good.view(), sum.view()}, {second.view(), second_sum.view()}};
    merge_partials(parts, sink.view(), to.view(), lse.view());
  };
  EXPECT_EQ(
      message_of<ShapeError>([&] { merge(narrow, sum, {}, out); }),
      "merge_partials: parts[1].out has shape {1, 2, 3, 5}, expected {1, 2, 3, 4}, that of out; all parts have the same queries");
  EXPECT_EQ(message_of<DtypeError>([&] { merge(good, half, {}, out); }),
            "merge_partials: parts[1].lse has type float16, expected float32 or float64, as forward() gives it");
  EXPECT_EQ(message_of<DtypeError>([&] { merge(whole, sum, {}, out); }),
            "merge_partials: parts[1].out has type int64, expected float32, float64, float16 or bfloat16; convert it");
  EXPECT_EQ(
      message_of<ShapeError>([&] { merge(good, good, {}, out); }),
      "merge_partials: parts[1].lse has shape {1, 2, 3, 4}, expected {1, 2, 3}, that of out without its last axis");
  EXPECT_EQ(message_of<ShapeError>([&] { merge(good, sum, sinks, out); }),
            "merge_partials: sinks has shape {3}, expected one number a query head: {2}");
  EXPECT_EQ(
      message_of<ShapeError>([&] { merge(good, sum, {}, flat); }),
      "merge_partials: out has shape {3, 4}, expected {batch, heads, queries, size}, or {queries, heads, size} of packed batches");
}

}  // namespace
}  // namespace qkv
