#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "qkv/error.h"
#include "qkv/masks.h"
#include "tests/support/message.h"
#include "tests/support/tensor.h"

namespace qkv {
namespace {

using testing::int32s;
using testing::message_of;
using testing::Tensor;
using testing::tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Query, key and value of these sizes; what they hold does not matter here.
struct Sizes {
  Tensor query, key, value;
  Sizes(int64_t batch, int64_t heads, int64_t queries, int64_t keys)
      : query(DType::kFloat32, {batch, heads, queries, 2}),
        key(DType::kFloat32, {batch, 1, keys, 2}),
        value(DType::kFloat32, {batch, 1, keys, 3}) {}
  Inputs inputs() const { return {.query = query.view(), .key = key.view(), .value = value.view()}; }
};

/// The rules of one head as text: a row of digits for each query, entries apart by a slash.
std::string rules_of(const Attention& attention, const Inputs& in, std::vector<int64_t> shape) {
  Tensor rule(DType::kUInt8, shape), keep(DType::kBool, shape);
  hiding_rule_of(attention, in, rule.as<uint8_t>());
  keep_mask_of(attention, in, keep.as<bool>());
  std::string text;
  rule.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    EXPECT_EQ(keep.get(b, h, i, j), rule.get(b, h, i, j) == 0) << "the two say the same";
    if (j == 0 && (b || h || i)) text += i == 0 ? '/' : ' ';
    text += char('0' + int(rule.get(b, h, i, j)));
  });
  return text;
}

TEST(MaskOf, PlainAttentionSeesEverything) {
  EXPECT_EQ(rules_of(Attention(), Sizes(1, 1, 2, 3).inputs(), {1, 1, 2, 3}), "000 000");
}

TEST(MaskOf, CausalFollowsTheAlignment) {
  const Sizes t(1, 1, 2, 4);
  Attention a = Attention().visible(Causal{});
  EXPECT_EQ(rules_of(a.align(Align::kTopLeft), t.inputs(), {1, 1, 2, 4}), "0222 0022");
  EXPECT_EQ(rules_of(a.align(Align::kBottomRight), t.inputs(), {1, 1, 2, 4}), "0002 0000");
  const Tensor offset = int32s({1});
  Inputs in = t.inputs();
  in.query_offset = offset.as<const int32_t>();
  EXPECT_EQ(rules_of(a, in, {1, 1, 2, 4}), "0022 0002") << "an offset overrides";
}

TEST(MaskOf, TellsTheFirstRuleThatHides) {
  Attention a = Attention().visible(Causal{}).visible(Window{1, -1}).align(Align::kTopLeft);
  EXPECT_EQ(rules_of(a, Sizes(1, 1, 4, 4).inputs(), {1, 1, 4, 4}), "0222 0022 3002 3300");
}

TEST(MaskOf, ColumnsPastALengthDoNotExist) {
  const Tensor lengths = int32s({1, 3});
  Inputs in;
  const Sizes t(2, 1, 2, 3);
  in = t.inputs();
  in.key_lengths = lengths.as<const int32_t>();
  EXPECT_EQ(rules_of(Attention().visible(Causal{}).align(Align::kTopLeft), in, {2, 1, 2, 3}), "011 011/022 002");
}

TEST(MaskOf, ReadsMasksAndDocuments) {
  const Sizes t(1, 2, 1, 3);
  const Tensor keep = tensor(DType::kBool, {1, 2, 1, 3}, {1, 0, 1, 0, 1, 1});
  const Tensor queries = tensor(DType::kInt32, {1, 1}, {7}), keys = tensor(DType::kInt32, {1, 3}, {7, 7, 8});
  Inputs in = t.inputs();
  in.keep_mask = keep.view();
  in.query_documents = queries.view();
  in.key_documents = keys.view();
  EXPECT_EQ(rules_of(Attention().visible(KeepMask{}).visible(Documents{}), in, {1, 2, 1, 3}), "023/203");
}

TEST(MaskOf, ABiasHidesWithMinusInfinityOnlyAndCountsAfterThePatterns) {
  const Sizes t(1, 1, 1, 4);
  const Tensor bias = tensor(DType::kFloat32, {1, 1, 1, 4}, {0, -kInfinity, std::numeric_limits<float>::lowest(), 1});
  Inputs in = t.inputs();
  in.bias = bias.view();
  Attention a = Attention().visible(Causal{}).score(SoftCap{3}).score(Bias{}).align(Align::kBottomRight);
  EXPECT_EQ(rules_of(a, in, {1, 1, 1, 4}), "0300");
}

TEST(MaskOf, RaggedBatchesAreAsWideAsTheirLongest) {
  const Tensor query(DType::kFloat32, {3, 1, 2}), key(DType::kFloat32, {5, 1, 2});
  const Tensor queries = int32s({0, 1, 3}), keys = int32s({0, 3, 5});
  Inputs in{.query = query.view(), .key = key.view(), .value = key.view()};
  in.cumulative_query_lengths = queries.as<const int32_t>();
  in.cumulative_key_lengths = keys.as<const int32_t>();
  EXPECT_EQ(rules_of(Attention().visible(Causal{}).align(Align::kTopLeft), in, {2, 1, 2, 3}), "022 111/021 001");
}

TEST(MaskOf, TheMaskOfLongRowsIsWhatTheRulesSay) {
  constexpr int64_t kKeys = 1300;  // more than two pieces
  const Sizes t(2, 2, 3, kKeys);
  Tensor mask(DType::kBool, {1, 2, 1, kKeys}), bias(DType::kFloat32, {1, 1, 3, kKeys}),
      of_keys(DType::kInt32, {1, kKeys});
  mask.fill([](int64_t, int64_t h, int64_t, int64_t j) { return j % 5 != h; });
  bias.fill([](int64_t, int64_t, int64_t i, int64_t j) { return (i + j) % 7 ? 0 : -kInfinity; });
  of_keys.fill([](int64_t, int64_t j, int64_t, int64_t) { return double(j / 3 % 4); });
  const Tensor lengths = int32s({1100, int32_t{kKeys}}), of_queries = tensor(DType::kInt32, {1, 3}, {0, 2, 3});
  Inputs in = t.inputs();
  in.keep_mask = mask.view();
  in.bias = bias.view();
  in.key_lengths = lengths.as<const int32_t>();
  in.query_documents = of_queries.view();
  in.key_documents = of_keys.view();
  Attention a = Attention().visible(Window{900, 100}).visible(KeepMask{}).visible(Documents{}).score(Bias{});
  rules_of(a.align(Align::kBottomRight), in, {2, 2, 3, kKeys});
}

TEST(MaskOf, ChecksLikeForward) {
  const Sizes t(1, 1, 2, 3);
  Tensor keep(DType::kBool, {1, 1, 3, 2}), rule(DType::kUInt8, {2, 3});
  EXPECT_EQ(message_of<ShapeError>([&] { keep_mask_of(Attention(), t.inputs(), keep.as<bool>()); }),
            "keep_mask_of: keep has shape {1, 1, 3, 2}, expected {1, 1, 2, 3}; allocate it so");
  EXPECT_EQ(message_of<ShapeError>([&] { hiding_rule_of(Attention(), t.inputs(), rule.as<uint8_t>()); }),
            "hiding_rule_of: rule has shape {2, 3}, expected {1, 1, 2, 3}; allocate it so");
  Tensor right(DType::kBool, {1, 1, 2, 3});
  const std::string unset =
      message_of<OptionError>([&] { keep_mask_of(Attention().visible(Causal{}), t.inputs(), right.as<bool>()); });
  EXPECT_TRUE(unset.starts_with("keep_mask_of: ")) << unset;
}

}  // namespace
}  // namespace qkv
