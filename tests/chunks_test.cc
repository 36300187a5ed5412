// Prefill at once, in chunks cut anywhere and token by token are equal to the last bit.
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/options.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

/// Queries [first, last) with the keys that exist by then: the first `last` columns, less those that `dropped` says.
Inputs chunk(const Inputs& all, int64_t first, int64_t last, int64_t dropped, const int32_t& offset,
             const int32_t& start) {
  Inputs in = all;
  in.query = slice(in.query, 2, first, last);
  for (auto* view : {&in.key, &in.value}) *view = slice(*view, 2, dropped, last);
  for (auto* view : {&in.keep_mask, &in.ignore_mask, &in.bias, &in.dropout_keep}) {
    if (*view && view->shape[2] != 1) *view = slice(*view, 2, first, last);
    if (*view && view->shape[3] != 1) *view = slice(*view, 3, dropped, last);
  }
  if (in.query_documents) in.query_documents = slice(in.query_documents, 1, first, last);
  if (in.key_documents) in.key_documents = slice(in.key_documents, 1, dropped, last);
  in.query_offset = View<const int32_t>(&offset, {1});
  if (dropped > 0) in.key_start = View<const int32_t>(&start, {1});
  return in;
}

/// Compares the whole with pieces; each piece is [first, last). A causal case with L = S.
void expect_pieces_equal(const Example& e, const std::vector<std::pair<int, int>>& pieces, bool drop_old_keys = false) {
  const Result whole = run(e);
  for (const auto& [first, last] : pieces) {
    const int dropped = drop_old_keys ? std::max(0, first - e.shape.left) : 0;
    const Inputs in = chunk(e.inputs(), first, last, dropped, first, dropped);
    Tensor out(e.shape.dtype, {e.shape.batch, e.shape.query_heads(), last - first, e.shape.value_dim});
    Tensor lse(e.lse_type(), {e.shape.batch, e.shape.query_heads(), last - first});
    forward(e.attention, in, {.out = out.view(), .lse = lse.view()});
    ASSERT_TRUE(same_bits(slice(whole.out.view(), 2, first, last), out.view()))
        << first << " to " << last << ", " << e.shape;
    ASSERT_TRUE(same_bits(slice(whole.lse.view(), 2, first, last), lse.view()))
        << first << " to " << last << ", " << e.shape;
  }
}

std::vector<std::pair<int, int>> cut(int length, const std::vector<int>& steps) {
  std::vector<std::pair<int, int>> pieces;
  for (int at = 0, n = 0; at < length; ++n) {
    const int next = std::min(length, at + steps[size_t(n) % steps.size()]);
    pieces.push_back({at, next});
    at = next;
  }
  return pieces;
}
/// Token by token, every `stride`-th token.
std::vector<std::pair<int, int>> tokens(int length, int stride) {
  std::vector<std::pair<int, int>> pieces;
  for (int at = (length - 1) % stride; at < length; at += stride) pieces.push_back({at, at + 1});
  return pieces;
}

Case causal(DType type, int length) {
  return {.dtype = type,
          .key_heads = 2,
          .group = 2,
          .queries = length,
          .keys = length,
          .head_dim = 11,
          .value_dim = 7,
          .causal = true};
}

TEST(Chunks, OfEveryTypeHaveTheBitsOfTheWhole) {
  for (const DType type : kFloatTypes) {
    for (const int length : {1, 7, 129, 300}) {
      const Example e(causal(type, length));
      expect_pieces_equal(e, tokens(length, 1));
      expect_pieces_equal(e, cut(length, {2, 3, 1, 5, 8, 4}));
      expect_pieces_equal(e, cut(length, {100, 1, 27}));
    }
  }
}

TEST(Chunks, ThatCrossTheMergeOfRunningSums) {
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const Example e(causal(type, 2049));
    expect_pieces_equal(e, tokens(2049, 64));
    expect_pieces_equal(e, {{0, 2047}, {2047, 2048}, {2048, 2049}, {2040, 2049}, {1000, 1037}});
  }
  Case c = causal(DType::kFloat32, 5000);
  c.key_heads = c.group = 1;
  expect_pieces_equal(Example(c), tokens(5000, 501));
  expect_pieces_equal(Example(c), cut(5000, {1234, 811}));
}

TEST(Chunks, OfEveryOption) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    Case c = causal(kFloatTypes[turn % 4], 150);
    c.seed = ++turn;
    option.set(c);
    c.causal = true;
    c.align = Align::kTopLeft;
    if (c.packed || c.key_lengths || c.key_start || c.query_offset) continue;
    SCOPED_TRACE(option.name);
    const Example e(c);
    expect_pieces_equal(e, tokens(150, 7));
    expect_pieces_equal(e, cut(150, {31, 2, 70}));
  }
}

TEST(Chunks, OfAWindowWhoseOldKeysWereDropped) {
  for (const DType type : kFloatTypes) {
    for (const int left : {3, 20, 127, 128, 200}) {
      Case c = causal(type, 400);
      c.window = true, c.left = left, c.right = 0, c.alibi = true;
      const Example e(c);
      expect_pieces_equal(e, tokens(400, 11), true);
      expect_pieces_equal(e, cut(400, {60, 5, 1, 200}), true);
    }
  }
  Case c = causal(DType::kFloat32, 4300);
  c.key_heads = c.group = 1;
  c.window = true, c.left = 300, c.right = 0;
  expect_pieces_equal(Example(c), tokens(4300, 97), true);
}

TEST(Chunks, OfNumbersThatHurt) {
  for (const DType type : kFloatTypes) {
    Example e(causal(type, 200));
    const double tiny = type == DType::kFloat64 ? 4.9e-324 : type == DType::kFloat16 ? 0x1p-24 : 0x1p-133;
    e.value.fill([&](int64_t, int64_t h, int64_t j, int64_t d) {
      switch ((h + j * 3 + d) % 5) {
        case 0: return -0.0;
        case 1: return tiny * double(j % 7);
        case 2: return -tiny;
        default: return e.value.get(0, h, j, d);
      }
    });
    // Scores up to 1e4, so that most weights underflow; every third query is -0.
    e.query.fill(
        [&](int64_t, int64_t h, int64_t i, int64_t d) { return i % 3 == 0 ? -0.0 : 100 * e.query.get(0, h, i, d); });
    e.key.fill(
        [&](int64_t, int64_t h, int64_t j, int64_t d) { return (j % 4 == 0 ? 100 : 1) * e.key.get(0, h, j, d); });
    expect_pieces_equal(e, tokens(200, 1));
    expect_pieces_equal(e, cut(200, {50, 3, 1}));
  }
}

TEST(Chunks, OnEveryInstructionSet) {
  each_instruction_set([](const std::string& set) {
    SCOPED_TRACE(set);
    for (const DType type : kFloatTypes) {
      const Example e(causal(type, 140));
      expect_pieces_equal(e, tokens(140, 3));
      expect_pieces_equal(e, cut(140, {9, 33, 2}));
    }
  });
}

TEST(Chunks, WhereFewQueriesSeeAllKeys) {
  // Not causal: the keys are all there, the queries come one by one or a few at a time.
  for (const DType type : kFloatTypes) {
    Case c = causal(type, 60);
    c.keys = 400;
    c.causal = false;
    const Example e(c);
    const Result whole = run(e);
    for (const int step : {1, 2, 5, 9, 17, 33, 60}) {
      for (int first = 0; first < 60; first += step) {
        const int last = std::min(60, first + step);
        Inputs in = e.inputs();
        in.query = slice(in.query, 2, first, last);
        Tensor out(type, {1, 4, last - first, c.value_dim});
        forward(e.attention, in, {.out = out.view()});
        ASSERT_TRUE(same_bits(slice(whole.out.view(), 2, first, last), out.view()))
            << first << " to " << last << " " << c;
      }
    }
  }
}

}  // namespace
}  // namespace qkv::testing
