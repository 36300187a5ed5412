#include "qkv/cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "qkv/positions.h"
#include "tests/support/compare.h"
#include "tests/support/message.h"
#include "tests/support/targets.h"

namespace qkv {
namespace {

using testing::each_instruction_set;
using testing::int32s;
using testing::message_of;
using testing::Placement;
using testing::same_bits;
using testing::slice;
using testing::Tensor;
using testing::tensor;

constexpr DType kFloating[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

/// Queries, keys and values of whole sequences.
struct Sequences {
  DType type = DType::kFloat32;
  int64_t batch = 2, key_heads = 2, group = 3, length = 150, dim = 17, value_dim = 9;
  Placement placement = Placement::kContiguous;
  Tensor q, k, v;

  explicit Sequences(DType t, Placement p = Placement::kContiguous, int64_t l = 150)
      : type(t), length(l), placement(p) {
    q = Tensor(type, {batch, key_heads * group, length, dim}, placement);
    k = Tensor(type, {batch, key_heads, length, dim}, placement);
    v = Tensor(type, {batch, key_heads, length, value_dim}, placement);
    q.normal(1), k.normal(2), v.normal(3);
  }
  CacheShape shape() const { return {type, batch, key_heads, dim, value_dim}; }
  Tensor output(int64_t rows) const { return Tensor(type, {batch, key_heads * group, rows, value_dim}); }
  /// All rows at once.
  Tensor full(const Attention& a) const {
    Tensor out = output(length);
    forward(a, {.query = q.view(), .key = k.view(), .value = v.view()}, {.out = out.view()});
    return out;
  }
};

template <class Cache> void append(Cache& cache, const Sequences& s, int64_t first, int64_t last) {
  cache.append(slice(s.k.view(), 2, first, last), slice(s.v.view(), 2, first, last));
}
/// Appends rows [first, last) and compares their attention with the same rows of `full`.
template <class Cache>
::testing::AssertionResult continues(Cache& cache, const Attention& a, const Sequences& s, const Tensor& full,
                                     int64_t first, int64_t last) {
  append(cache, s, first, last);
  Tensor out = s.output(last - first);
  forward(a, cache.inputs(slice(s.q.view(), 2, first, last)), {.out = out.view()});
  return same_bits(out.view(), slice(full.view(), 2, first, last));
}

TEST(KeyValueCache, StepByStepIsTheWholeSequenceToTheBit) {
  const Attention a = Attention().visible(Causal{}).align(Align::kTopLeft);
  each_instruction_set([&](const std::string& set) {
    for (const DType type : kFloating) {
      const Sequences s(type);
      const Tensor full = s.full(a);
      KeyValueCache cache(s.shape(), 1);
      for (int64_t l = 0; l < s.length; ++l)
        ASSERT_TRUE(continues(cache, a, s, full, l, l + 1)) << set << " " << name(type) << " " << l;
    }
  });
}

TEST(KeyValueCache, AnyCutIntoChunksIsTheWholeSequenceToTheBit) {
  const Attention a = Attention().visible(Causal{}).align(Align::kTopLeft);
  for (const Placement placement : testing::kPlacements)
    for (const int64_t chunk : {2, 31, 64, 129, 150}) {
      const Sequences s(DType::kFloat32, placement);
      const Tensor full = s.full(a);
      KeyValueCache cache(s.shape());
      for (int64_t l = 0; l < s.length; l += chunk)
        ASSERT_TRUE(continues(cache, a, s, full, l, std::min(s.length, l + chunk))) << name(placement) << " " << chunk;
      EXPECT_EQ(cache.length(), s.length);
      EXPECT_TRUE(same_bits(cache.keys(), s.k.view()));
      EXPECT_TRUE(same_bits(cache.values(), s.v.view()));
    }
}

TEST(KeyValueCache, KeysRotatedAsTheyComeAreThoseRotatedTogether) {
  Sequences s(DType::kFloat32);
  const Rotary rotary({.dim = 16});
  Tensor all(s.type, {2, 2, s.length, s.dim});
  rotary_forward(rotary, s.k.view(), {}, all.view());
  KeyValueCache cache(s.shape());
  for (int64_t l = 0; l < s.length; l += 7) {
    const int64_t last = std::min(s.length, l + 7);
    Tensor rows(s.type, {2, 2, last - l, s.dim});
    rotary_forward(rotary, slice(View<const void>(s.k.view()), 2, l, last), {.offsets = cache.lengths()}, rows.view());
    cache.append(rows.view(), slice(s.v.view(), 2, l, last));
  }
  EXPECT_TRUE(same_bits(cache.keys(), all.view()));
}

TEST(KeyValueCache, EntriesMayHaveDifferentLengths) {
  const Attention a = Attention().visible(Causal{}).align(Align::kTopLeft);
  const Sequences s(DType::kFloat32);
  const Tensor full = s.full(a);
  KeyValueCache cache(s.shape(), 1);
  // Entry 0 takes all rows, entry 1 some: its sequence is every row that it took.
  int64_t taken[] = {0, 0};
  const int64_t steps[][2] = {{5, 2}, {1, 1}, {0, 1}, {3, 3}, {7, 0}, {1, 1}};
  for (const auto& step : steps) {
    const int64_t n = std::max(step[0], step[1]);
    Tensor q(s.type, {2, 6, n, s.dim}), k(s.type, {2, 2, n, s.dim}), v(s.type, {2, 2, n, s.value_dim});
    const auto take = [&](Tensor& to, const Tensor& from) {
      to.each([&](int64_t b, int64_t h, int64_t l, int64_t e) {
        if (l < step[b]) to.set(from.get(b, h, taken[b] + l, e), b, h, l, e);
      });
    };
    take(q, s.q), take(k, s.k), take(v, s.v);
    const Tensor rows = int32s({double(step[0]), double(step[1])});
    cache.append(k.view(), v.view(), rows.as<int32_t>());
    Tensor out = s.output(n);
    forward(a, cache.inputs(q.view()), {.out = out.view()});
    for (int64_t b = 0; b < 2; ++b) {
      const auto got = slice(slice(View<const void>(out.view()), 0, b, b + 1), 2, 0, step[b]);
      const auto expected = slice(slice(full.view(), 0, b, b + 1), 2, taken[b], taken[b] + step[b]);
      ASSERT_TRUE(same_bits(got, expected)) << b << " at " << taken[b];
      EXPECT_EQ(cache.offsets()(b), taken[b]);
      taken[b] += step[b];
      EXPECT_EQ(cache.lengths()(b), taken[b]);
    }
  }
}

TEST(KeyValueCache, RollbackIsAsIfTheRowsHadNeverCome) {
  const Attention a = Attention().visible(Causal{}).align(Align::kTopLeft);
  const Sequences s(DType::kFloat32);
  const Tensor full = s.full(a);
  KeyValueCache cache(s.shape());
  append(cache, s, 0, 40);
  append(cache, s, 100, 130);
  cache.rollback(30);
  ASSERT_TRUE(continues(cache, a, s, full, 40, 47));
  const Tensor steps = int32s({7, 5});
  cache.rollback(steps.as<int32_t>());
  EXPECT_EQ(cache.lengths()(0), 40);
  EXPECT_EQ(cache.lengths()(1), 42);
  cache.clear();
  EXPECT_EQ(cache.length(), 0);
  ASSERT_TRUE(continues(cache, a, s, full, 0, 10));
}

TEST(KeyValueCache, ReorderGathersWhateverTheBeams) {
  constexpr int64_t kBatch = 4;
  for (int map = 0; map < 256; ++map) {
    KeyValueCache cache({DType::kFloat32, kBatch, 2, 3, 2}, 4);
    Tensor k(DType::kFloat32, {kBatch, 2, 5, 3}), v(DType::kFloat32, {kBatch, 2, 5, 2});
    k.normal(4), v.normal(5);
    const Tensor rows = int32s({5, 3, 0, 4}),
                 beams = int32s({double(map & 3), double(map >> 2 & 3), double(map >> 4 & 3), double(map >> 6)});
    cache.append(k.view(), v.view(), rows.as<int32_t>());
    cache.reorder(beams.as<int32_t>());
    for (int64_t b = 0; b < kBatch; ++b) {
      const auto from = int64_t(beams.get(b));
      const int64_t length = cache.lengths()(b);
      ASSERT_EQ(length, rows.get(from)) << map;
      const auto entry = [&](View<const void> x, int64_t at) { return slice(slice(x, 0, at, at + 1), 2, 0, length); };
      ASSERT_TRUE(same_bits(entry(cache.keys(), b), entry(k.view(), from))) << map;
      ASSERT_TRUE(same_bits(entry(cache.values(), b), entry(v.view(), from))) << map;
    }
  }
}

TEST(KeyValueCache, BeyondAFixedCapacityItRefusesAndHasNotChanged) {
  const Sequences s(DType::kFloat32);
  KeyValueCache cache(s.shape(), 12, KeyValueCache::Growth::kFixed);
  append(cache, s, 0, 10);
  EXPECT_EQ(
      message_of<OptionError>([&] { append(cache, s, 10, 13); }),
      "KeyValueCache::append: entry 0 would hold 13 positions, the capacity is 12; make it larger, let it grow, or roll "
      "back");
  EXPECT_EQ(cache.length(), 10);
  append(cache, s, 10, 12);
  EXPECT_TRUE(same_bits(cache.keys(), slice(s.k.view(), 2, 0, 12)));
  cache.reserve(20);
  append(cache, s, 12, 20);
  EXPECT_TRUE(same_bits(cache.values(), slice(s.v.view(), 2, 0, 20)));
}

TEST(KeyValueCache, RefusesWrongRows) {
  const Sequences s(DType::kFloat32), half(DType::kFloat16);
  KeyValueCache cache(s.shape());
  append(cache, s, 0, 3);
  EXPECT_EQ(message_of<ShapeError>([&] { cache.append(s.k.view(), s.k.view()); }),
            "KeyValueCache::append: value has shape {2, 2, 150, 17}, expected {2, 2, 150, 9}; allocate or slice it so");
  EXPECT_EQ(
      message_of<DtypeError>([&] { append(cache, half, 0, 2); }),
      "KeyValueCache::append: key has type float16 but the cache has float32; convert the rows, or make the cache of "
      "their type");
  const Tensor four = int32s({4, 0}), five = int32s({0, 5}), one = int32s({1});
  EXPECT_EQ(message_of<OptionError>(
                [&] { cache.append(slice(s.k.view(), 2, 0, 3), slice(s.v.view(), 2, 0, 3), four.as<int32_t>()); }),
            "KeyValueCache::append: rows[0] is 4, expected 0 to 3: so many rows key has");
  EXPECT_EQ(message_of<OptionError>([&] { cache.reorder(five.as<int32_t>()); }),
            "KeyValueCache::reorder: beams[1] is 5, expected 0 to 1: an entry of the batch");
  EXPECT_THROW(cache.reorder(one.as<int32_t>()), ShapeError);
  EXPECT_EQ(message_of<OptionError>([&] { cache.rollback(4); }),
            "KeyValueCache::rollback: 4 steps of entry 0, expected 0 to 3: so many positions it has");
  EXPECT_EQ(
      message_of<ShapeError>([&] { cache.inputs(slice(s.q.view(), 2, 0, 2)); }),
      "KeyValueCache::inputs: query has shape {2, 6, 2, 17}, expected {2, query heads, 3, size} for the rows that were "
      "appended last; for other queries pass keys(), values(), lengths and a position yourself");
  EXPECT_THROW(KeyValueCache({DType::kInt32, 1, 1, 1, 1}), DtypeError);
  EXPECT_THROW(KeyValueCache({DType::kFloat32, -1, 1, 1, 1}), ShapeError);
  EXPECT_THROW(KeyValueCache(s.shape(), int64_t{1} << 40), OptionError);
  EXPECT_EQ(cache.length(), 3);
}

Attention sliding(int64_t window) {
  return Attention().visible(Causal{}).visible(Window{int(window) - 1, 0}).align(Align::kTopLeft);
}

TEST(SlidingCache, StepByStepIsTheWholeSequenceToTheBit) {
  each_instruction_set([&](const std::string& set) {
    for (const DType type : kFloating)
      for (const int64_t window : {1, 4, 63, 64, 129}) {
        const Sequences s(type, Placement::kContiguous, 200);
        const Attention a = sliding(window);
        const Tensor full = s.full(a);
        SlidingCache cache(s.shape(), {.window = window});
        const size_t bytes = cache.bytes();
        for (int64_t l = 0; l < s.length; ++l) {
          ASSERT_TRUE(continues(cache, a, s, full, l, l + 1)) << set << " " << name(type) << " " << window << " " << l;
          ASSERT_EQ(cache.keys().shape[2], std::min(window, l + 1));
        }
        EXPECT_EQ(cache.bytes(), bytes);
      }
  });
}

TEST(SlidingCache, ChunksAndRollbacksOfAnyKindAreTheWholeSequenceToTheBit) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const auto upto = [&](int64_t n) { return int64_t(random() % uint64_t(n + 1)); };
    const Sequences s(DType::kFloat32, testing::kPlacements[seed % 5], 300);
    const SlidingOptions options{.window = 1 + upto(40), .rollback = upto(9), .chunk = 1 + upto(12)};
    const Attention a = sliding(options.window);
    const Tensor full = s.full(a);
    SlidingCache cache(s.shape(), options);
    int64_t furthest = 0;
    for (int64_t l = 0; l < s.length;) {
      const int64_t last = std::min(s.length, l + 1 + upto(options.chunk - 1));
      ASSERT_TRUE(continues(cache, a, s, full, l, last)) << seed << " " << l;
      l = last;
      furthest = std::max(furthest, l);
      if (upto(2) != 0 || l == s.length) continue;
      const int64_t back = upto(l - std::max<int64_t>(0, furthest - options.rollback));
      cache.rollback(back);
      l -= back;
      const int64_t first = std::max<int64_t>(0, l - options.window);
      ASSERT_EQ(cache.key_start()(0), first);
      ASSERT_TRUE(same_bits(cache.keys(), slice(s.k.view(), 2, first, l))) << seed << " " << l;
    }
  }
}

TEST(SlidingCache, KeepsTheEndOfALongPrompt) {
  const Sequences s(DType::kFloat32);
  const Attention a = sliding(10);
  const Tensor full = s.full(a);
  SlidingCache cache(s.shape(), {.window = 10});
  append(cache, s, 0, 100);
  EXPECT_TRUE(same_bits(cache.keys(), slice(s.k.view(), 2, 90, 100)));
  EXPECT_EQ(cache.key_start()(1), 90);
  EXPECT_THROW(cache.inputs(slice(s.q.view(), 2, 0, 100)), OptionError);
  for (int64_t l = 100; l < s.length; ++l) ASSERT_TRUE(continues(cache, a, s, full, l, l + 1));
}

TEST(SlidingCache, EntriesMayHaveDifferentLengths) {
  const Sequences s(DType::kFloat32);
  const Attention a = sliding(6);
  const Tensor full = s.full(a);
  SlidingCache cache(s.shape(), {.window = 6});
  int64_t taken[] = {0, 0};
  for (int step = 0; step < 140; ++step) {
    const bool both = step % 3 != 0;
    Tensor q(s.type, {2, 6, 1, s.dim}), k(s.type, {2, 2, 1, s.dim}), v(s.type, {2, 2, 1, s.value_dim});
    const auto take = [&](Tensor& to, const Tensor& from) {
      to.fill([&](int64_t b, int64_t h, int64_t, int64_t e) { return from.get(b, h, taken[b], e); });
    };
    take(q, s.q), take(k, s.k), take(v, s.v);
    const Tensor rows = int32s({1, both ? 1.0 : 0.0});
    cache.append(k.view(), v.view(), rows.as<int32_t>());
    Tensor out = s.output(1);
    forward(a, cache.inputs(q.view()), {.out = out.view()});
    for (int64_t b = 0; b < (both ? 2 : 1); ++b, taken[b - 1] += 1)
      ASSERT_TRUE(same_bits(slice(View<const void>(out.view()), 0, b, b + 1),
                            slice(slice(full.view(), 0, b, b + 1), 2, taken[b], taken[b] + 1)))
          << step << " " << b;
    if (step != 70) continue;
    const Tensor swap = int32s({1, 0});
    cache.reorder(swap.as<int32_t>());
    EXPECT_EQ(cache.lengths()(0), taken[1]);
    cache.reorder(swap.as<int32_t>());
  }
}

TEST(SlidingCache, RollsBackAsFarAsPromisedAndNoFurther) {
  const Sequences s(DType::kFloat32);
  SlidingCache cache(s.shape(), {.window = 5, .rollback = 3});
  append(cache, s, 0, 4);
  cache.rollback(4);  // nothing is gone yet
  for (int64_t l = 0; l < 100; ++l) append(cache, s, l, l + 1);
  EXPECT_EQ(
      message_of<OptionError>([&] { cache.rollback(4); }),
      "SlidingCache::rollback: 4 steps of entry 0, expected 0 to 3: before that the window's keys are gone; ask for "
      "more when the cache is made");
  cache.rollback(2);
  cache.rollback(1);
  EXPECT_TRUE(same_bits(cache.values(), slice(s.v.view(), 2, 92, 97)));
  EXPECT_THROW(cache.rollback(1), OptionError);
  cache.clear();
  EXPECT_EQ(cache.keys().shape[2], 0);
  EXPECT_THROW(SlidingCache(s.shape(), {.window = 0}), OptionError);
}

}  // namespace
}  // namespace qkv
