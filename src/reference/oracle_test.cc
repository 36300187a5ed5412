// Both references against numbers that a person can work out. Derivations stand beside the numbers.
#include "reference/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/plain.h"
#include "tests/support/tensor.h"

namespace qkv::reference {
namespace {

using qkv::testing::int32s;
using qkv::testing::Tensor;
using qkv::testing::tensor;

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Matrices as tensors of one batch entry and one head.
struct Small {
  Tensor query, key, value;
  Small(std::vector<int64_t> q, const std::vector<double>& qs, std::vector<int64_t> k, const std::vector<double>& ks,
        std::vector<int64_t> v, const std::vector<double>& vs, DType type = DType::kFloat32)
      : query(tensor(type, {1, 1, q[0], q[1]}, qs)),
        key(tensor(type, {1, 1, k[0], k[1]}, ks)),
        value(tensor(type, {1, 1, v[0], v[1]}, vs)) {}
  Inputs inputs() const { return {.query = query.view(), .key = key.view(), .value = value.view()}; }
};

void expect_near(const std::vector<double>& got, const std::vector<double>& wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t n = 0; n < got.size(); ++n) {
    if (std::isinf(wanted[n])) EXPECT_EQ(got[n], wanted[n]) << "element " << n;
    else EXPECT_NEAR(got[n], wanted[n], tolerance) << "element " << n;
  }
}

/// Two tokens: scores [[4, 5], [5, 4]] over sqrt(2) are 2.828427 and 3.535534; e^2.828427 = 16.918829,
/// e^3.535534 = 34.313330, so the weights are 16.918829 / 51.232159 = .330238 and .669762, lse = ln 51.232159 = 3.936367.
Small two_tokens() { return {{2, 2}, {1, 2, 2, 1}, {2, 2}, {2, 1, 1, 2}, {2, 2}, {3, 0, 0, 3}}; }

/// Three tokens: scores [[4, 1, 6], [5, 2, 3], [1, 0, 3]] over sqrt(2), nothing symmetric in them.
Small three_tokens() { return {{3, 2}, {1, 2, 2, 1, 0, 1}, {3, 2}, {2, 1, 1, 0, 0, 3}, {3, 2}, {1, 0, 0, 2, 3, 3}}; }

TEST(Oracle, TwoTokensByHand) {
  const Small x = two_tokens();
  const Attention a;
  const Inputs in = x.inputs();
  const Problem p(a, in);
  for (int64_t i = 0; i < 2; ++i) {
    for (const RowAnswer& row : {oracle(p, 0, 0, i), plain(p, DType::kFloat32, 0, 0, i)}) {
      const double small = i == 0 ? .330238 : .669762, large = 1 - small;
      expect_near(row.weights, {small, large}, 1e-6);
      expect_near(row.out, {3 * small, 3 * large}, 2e-6);
      EXPECT_NEAR(row.lse, 3.936367, 1e-6);
      EXPECT_NEAR(row.raw_scores[0], i == 0 ? 2.828427 : 3.535534, 1e-6);
    }
  }
}

TEST(Oracle, CausalLeavesTheFirstTokenAlone) {
  const Small x = two_tokens();
  const Attention a = Attention{}.visible(Causal{});
  const Inputs in = x.inputs();
  const Problem p(a, in);
  const RowAnswer first = oracle(p, 0, 0, 0), second = oracle(p, 0, 0, 1);
  expect_near(first.weights, {1, 0}, 0);
  expect_near(first.out, {3, 0}, 0);
  expect_near(first.masked_scores, {4 / std::sqrt(2.0), -kInf}, 1e-15);
  expect_near(first.modified_scores, {4 / std::sqrt(2.0), 5 / std::sqrt(2.0)}, 1e-15);
  expect_near(second.out, {2.009285, .990715}, 1e-6);
}

TEST(Oracle, IdentityMatrices) {
  // Scores .707107 and 0: e^.707107 = 2.028115, of 3.028115 it is .669762; lse = ln 3.028115 = 1.107940.
  const Small x{{2, 2}, {1, 0, 0, 1}, {2, 2}, {1, 0, 0, 1}, {2, 2}, {1, 0, 0, 1}};
  const Attention plain_softmax;
  const Inputs in = x.inputs();
  const Problem p(plain_softmax, in);
  expect_near(oracle(p, 0, 0, 0).out, {.669762, .330238}, 1e-6);
  expect_near(oracle(p, 0, 0, 1).out, {.330238, .669762}, 1e-6);
  EXPECT_NEAR(oracle(p, 0, 0, 1).lse, 1.107940, 1e-6);

  // The scale alone decides: 1 / (1 + e^-1), 1 / (1 + e^-.5), 1 / (1 + e^-sqrt 2).
  for (const auto& [scale, weight] : {std::pair{1.0, .731059}, {0.5, .622459}, {std::sqrt(2.0), .804430}}) {
    Attention a;
    a.scale(scale);
    EXPECT_NEAR(oracle(Problem(a, in), 0, 0, 0).weights[0], weight, 1e-6) << scale;
  }
}

TEST(Oracle, ThreeTokensByHand) {
  const Small x = three_tokens();
  const Attention a;
  const Inputs in = x.inputs();
  const Problem p(a, in);
  const std::vector<double> weights[] = {
      {.191090, .022907, .786003}, {.733681, .087949, .178370}, {.178370, .087949, .733681}};
  const std::vector<double> out[] = {{2.549099, 2.403822}, {1.268792, .711008}, {2.379413, 2.376941}};
  const double lse[] = {4.483435, 3.845215, 2.431001};
  for (int64_t i = 0; i < 3; ++i) {
    for (const RowAnswer& row : {oracle(p, 0, 0, i), plain(p, DType::kFloat32, 0, 0, i)}) {
      expect_near(row.weights, weights[i], 1e-6);
      expect_near(row.out, out[i], 2e-6);
      EXPECT_NEAR(row.lse, lse[i], 1e-6);
    }
  }
}

TEST(Oracle, ARowWithoutKeysIsZeroAndItsLogSumExpMinusInfinity) {
  // The complement of the causal mask: query 0 sees key 1 only, query 1 sees nothing.
  const Small x{{2, 2}, {1, 0, 0, 1}, {2, 2}, {1, 0, 0, 1}, {2, 2}, {1, 0, 0, 1}};
  const Tensor keep = tensor(DType::kBool, {1, 1, 2, 2}, {0, 1, 0, 0});
  Inputs in = x.inputs();
  in.keep_mask = keep.view();
  const Attention a = Attention{}.visible(KeepMask{});
  const Problem p(a, in);
  expect_near(oracle(p, 0, 0, 0).weights, {0, 1}, 0);
  const RowAnswer empty = oracle(p, 0, 0, 1);
  expect_near(empty.out, {0, 0}, 0);
  expect_near(empty.weights, {0, 0}, 0);
  EXPECT_EQ(empty.lse, -kInf);
  EXPECT_EQ(empty.visible_keys, 0);
  EXPECT_EQ(empty.max_index, -1);
}

TEST(Oracle, SinkAndZeroKeyTakeTheirShare) {
  // One key with score 0 and value 6, a sink of ln 2, a zero key: 1 of 1 + 2 + 1, so out = 6 / 4, lse = ln 4.
  const Small x{{1, 1}, {0}, {1, 1}, {5}, {1, 1}, {6}};
  const Tensor sinks = tensor(DType::kFloat64, {1}, {std::log(2.0)});
  Inputs in = x.inputs();
  in.sinks = sinks.view();
  const Attention a = Attention{}.zero_key();
  const Attention both = [&] {
    Attention b = a;
    return b.weights(SinkSoftmax{});
  }();
  const RowAnswer row = oracle(Problem(both, in), 0, 0, 0);
  expect_near(row.out, {1.5}, 1e-15);
  expect_near(row.weights, {.25}, 1e-15);
  EXPECT_NEAR(row.lse, std::log(4.0), 1e-15);
  EXPECT_NEAR(row.sink_share, .75, 1e-15);
  EXPECT_EQ(row.entropy, 0);  // of the one visible key, renormalised
  in.sinks = {};
  EXPECT_NEAR(oracle(Problem(a, in), 0, 0, 0).out[0], 3, 1e-15);
}

TEST(Oracle, ModifiersRunInTheirOrder) {
  // Score 2 with scale 1. Cap 1: tanh 2 = .964028. Bias .5 after it: 1.464028; before it: tanh 2.5 = .986614.
  const Small x{{1, 1}, {1}, {1, 1}, {2}, {1, 1}, {1}};
  const Tensor bias = tensor(DType::kFloat32, {1, 1, 1, 1}, {.5});
  Inputs in = x.inputs();
  in.bias = bias.view();
  Attention cap_first, bias_first;
  cap_first.score(SoftCap{1}).score(Bias{}).scale(1);
  bias_first.score(Bias{}).score(SoftCap{1}).scale(1);
  EXPECT_NEAR(oracle(Problem(cap_first, in), 0, 0, 0).modified_scores[0], 1.464028, 1e-6);
  EXPECT_NEAR(oracle(Problem(bias_first, in), 0, 0, 0).modified_scores[0], .986614, 1e-6);
  EXPECT_EQ(oracle(Problem(cap_first, in), 0, 0, 0).raw_scores[0], 2);
}

TEST(Oracle, PositionsFollowAlignmentOffsetAndStart) {
  // Two queries, four keys of which three exist. ALiBi of slope 1 shows the distances.
  const Small x{{2, 1}, {0, 0}, {4, 1}, {0, 0, 0, 0}, {4, 1}, {1, 1, 1, 1}};
  const Tensor slopes = tensor(DType::kFloat32, {1}, {1}), lengths = int32s({3}), offset = int32s({5}),
               start = int32s({4});
  Inputs in = x.inputs();
  in.alibi_slopes = slopes.view();
  in.key_lengths = lengths.as<int32_t>();
  Attention a = Attention{}.score(Alibi{});
  a.align(Align::kTopLeft);  // query 1 stands at 1
  expect_near(oracle(Problem(a, in), 0, 0, 1).modified_scores, {-1, 0, -1, -kInf}, 0);
  a.align(Align::kBottomRight);  // query 1 stands at 1 + 3 - 2 = 2
  expect_near(oracle(Problem(a, in), 0, 0, 1).modified_scores, {-2, -1, 0, -kInf}, 0);
  in.query_offset = offset.as<int32_t>();  // query 1 stands at 6
  expect_near(oracle(Problem(a, in), 0, 0, 1).modified_scores, {-6, -5, -4, -kInf}, 0);
  in.key_start = start.as<int32_t>();  // keys stand at 4, 5, 6
  expect_near(oracle(Problem(a, in), 0, 0, 1).modified_scores, {-2, -1, 0, -kInf}, 0);
  in.query_offset = {};  // the last query stands where the last key that exists stands, at 6
  expect_near(oracle(Problem(a, in), 0, 0, 1).modified_scores, {-2, -1, 0, -kInf}, 0);
}

TEST(Oracle, WindowsAreInclusiveDistances) {
  // Query 2 of five with window (1, 1) sees keys 1, 2, 3, each with a third of the weight; entropy ln 3.
  const Small x{{5, 1}, {0, 0, 0, 0, 0}, {5, 1}, {0, 0, 0, 0, 0}, {5, 1}, {1, 2, 3, 4, 5}};
  const Attention a = Attention{}.visible(Window{1, 1});
  const Inputs in = x.inputs();
  const RowAnswer row = oracle(Problem(a, in), 0, 0, 2);
  expect_near(row.weights, {0, 1 / 3.0, 1 / 3.0, 1 / 3.0, 0}, 1e-15);
  EXPECT_NEAR(row.entropy, std::log(3.0), 1e-15);
  EXPECT_NEAR(row.effective_keys, 3, 1e-14);
  EXPECT_NEAR(row.mean_distance, 2 / 3.0, 1e-15);
  EXPECT_EQ(row.visible_keys, 3);
  EXPECT_EQ(row.max_index, 1);  // ties to the lowest
}

TEST(Oracle, QueryHeadsShareKeyHeadsInGroupsOrTiles) {
  // Four query heads, two key heads with values 1 and 2.
  const Tensor query = Tensor(DType::kFloat32, {1, 4, 1, 1}).fill(0),
               key = Tensor(DType::kFloat32, {1, 2, 1, 1}).fill(0);
  const Tensor value = tensor(DType::kFloat32, {1, 2, 1, 1}, {1, 2});
  const Inputs in{.query = query.view(), .key = key.view(), .value = value.view()};
  Attention grouped, tiled;
  tiled.heads(HeadMapping::kTiled);
  for (int64_t h = 0; h < 4; ++h) {
    EXPECT_EQ(oracle(Problem(grouped, in), 0, h, 0).out[0], h < 2 ? 1 : 2);
    EXPECT_EQ(oracle(Problem(tiled, in), 0, h, 0).out[0], h % 2 == 0 ? 1 : 2);
  }
}

TEST(Oracle, PackedSequencesDoNotSeeEachOther) {
  // Sequences of one and two tokens, values 1 | 2 3, all scores 0.
  const Tensor zeros = Tensor(DType::kFloat32, {3, 1, 1}).fill(0),
               value = tensor(DType::kFloat32, {3, 1, 1}, {1, 2, 3});
  const Tensor ends = int32s({0, 1, 3});
  const Inputs in{.query = zeros.view(),
                  .key = zeros.view(),
                  .value = value.view(),
                  .cumulative_query_lengths = ends.as<int32_t>(),
                  .cumulative_key_lengths = ends.as<int32_t>()};
  const Attention a;
  const Problem p(a, in);
  EXPECT_EQ(p.batches(), 2);
  EXPECT_EQ(oracle(p, 0, 0, 0).out[0], 1);
  EXPECT_EQ(oracle(p, 1, 0, 1).out[0], 2.5);
}

TEST(Oracle, HiddenNumbersHaveNoInfluence) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Small x{{1, 1}, {1}, {3, 1}, {nan, 0, 0}, {3, 1}, {nan, 4, 6}};
  const Tensor bias = tensor(DType::kFloat32, {1, 1, 1, 3}, {-kInf, 0, 0});
  Inputs in = x.inputs();
  in.bias = bias.view();
  const Attention a = Attention{}.score(Bias{});
  const RowAnswer row = oracle(Problem(a, in), 0, 0, 0);
  EXPECT_EQ(row.out[0], 5);
  EXPECT_EQ(row.masked_scores[0], -kInf);
  EXPECT_TRUE(std::isnan(row.modified_scores[0]));
  EXPECT_TRUE(std::isnan(oracle(Problem(Attention{}, x.inputs()), 0, 0, 0).out[0]));
}

TEST(Plain, RoundsOnceToTheOutputsType) {
  // The mean of 1 and 1 + 2^-7 is 1 + 2^-8, half way between two bfloat16: to even, 1. float16 holds it.
  const std::vector<double> values{1, 1 + 0x1p-7};
  for (const auto& [type, wanted] : {std::pair{DType::kBFloat16, 1.0}, {DType::kFloat16, 1 + 0x1p-8}}) {
    const Small x{{1, 1}, {0}, {2, 1}, {0, 0}, {2, 1}, values, type};
    const Attention a;
    const Inputs in = x.inputs();
    EXPECT_EQ(plain(Problem(a, in), type, 0, 0, 0).out[0], wanted);
    EXPECT_EQ(oracle(Problem(a, in), 0, 0, 0).out[0], 1 + 0x1p-8);
  }
}

/// Score modifiers and patterns of one's own run as they are.
struct Plus {
  auto operator()(auto score, Site at) const { return score + float(at.column); }
};
struct OnlyOdd {
  bool sees(Site at) const { return at.column % 2 == 1; }
};
TEST(Oracle, TakesOwnPolicies) {
  // Scores 0, 1, 2, 3, of which 1 and 3 are seen: weights e / (e + e^3) = .119203 and .880797.
  const Small x{{1, 1}, {0}, {4, 1}, {0, 0, 0, 0}, {4, 1}, {0, 0, 0, 1}};
  const Attention a = Attention{}.visible(OnlyOdd{}).score(Plus{});
  const Inputs in = x.inputs();
  for (const RowAnswer& row : {oracle(Problem(a, in), 0, 0, 0), plain(Problem(a, in), DType::kFloat32, 0, 0, 0)}) {
    expect_near(row.weights, {0, .119203, 0, .880797}, 1e-6);
    expect_near(row.modified_scores, {0, 1, 2, 3}, 0);
  }
}

}  // namespace
}  // namespace qkv::reference
