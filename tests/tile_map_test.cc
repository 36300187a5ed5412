// Every tile of every pattern, and of every pair and triple of them, against brute force: nothing visited that is hidden from
// all its rows, nothing called full that hides a pair, nothing missed that is seen.
#include <gtest/gtest.h>

#include <functional>

#include "attention/plan.h"
#include "examples/own_policies.h"
#include "reference/problem.h"
#include "tests/support/case.h"

namespace qkv::testing {
namespace {

/// Stretches that are coarser than what is seen, as a user may write them.
struct Banded {
  static constexpr bool kReadsHead = false;
  bool sees(Site at) const { return at.key / 40 % 2 == 0 && (at.key + at.query) % 4 != 0; }
  void visit(std::span<const Row> rows, Stretches& out) const {
    for (int32_t j = rows[0].present.first; j < rows[0].present.last; ++j)
      if ((j + rows[0].key_start) / 40 % 2 == 0) out.push_back({j, j + 1});
  }
};
struct EvenHeadsSeeTheFirst {
  bool sees(Site at) const { return at.head % 2 == 1 || at.key < 30; }
};

struct Step {
  const char* name;
  std::function<void(Case&, Attention&)> add;
};
const std::vector<Step>& steps() {
  static const std::vector<Step> list{
      {"causal", [](Case&, Attention& a) { a.visible(Causal{}); }},
      {"window:9,0",
       [](Case&, Attention& a) {
         a.visible(Window{9, 0});
       }},
      {"window:-1,3",
       [](Case&, Attention& a) {
         a.visible(Window{-1, 3});
       }},
      {"window:40,-1",
       [](Case&, Attention& a) {
         a.visible(Window{40, -1});
       }},
      {"prompt:50", [](Case&, Attention& a) { a.visible(Prompt{50}); }},
      {"strided:7", [](Case&, Attention& a) { a.visible(Strided{7}); }},
      {"documents", [](Case& c, Attention& a) { c.documents = true, a.visible(Documents{}); }},
      {"keep_mask", [](Case& c, Attention& a) { c.keep_mask = true, a.visible(KeepMask{}); }},
      {"ignore_mask", [](Case& c, Attention& a) { c.ignore_mask = true, a.visible(IgnoreMask{}); }},
      {"bias", [](Case& c, Attention& a) { c.bias = c.bias_hides = true, a.score(Bias{}); }},
      {"banded", [](Case&, Attention& a) { a.visible(Banded{}); }},
      {"heads", [](Case&, Attention& a) { a.visible(EvenHeadsSeeTheFirst{}); }},
      {"key lengths", [](Case& c, Attention&) { c.key_lengths = !c.packed; }},
  };
  return list;
}

struct Counts {
  int64_t parts = 0, full = 0, hidden_but_visited = 0, full_but_hides = 0, seen_but_missed = 0, wrong_words = 0,
          seen_by_none = 0;
};

/// One tile against one block of keys. A tile is what the kernel works on at a time: where the queries of a head do not fill
/// one, rows of several heads.
void compare(const qkv::Bound& b, const reference::Problem& problem, const RowTile& t, KeyRange columns, Counts& n) {
  std::vector<uint64_t> words(kernels::kKeyBlock + 8, ~uint64_t{0});
  const Part part = look(b, t, columns, words.data());
  int64_t seen = 0, all = 0;
  for (int32_t j = std::max(columns.first, 0); j < columns.last && j < int32_t(problem.columns(t.batch)); ++j) {
    const bool visited = part.cover != Cover::kHidden && part.first <= j && j < part.last;
    for (int r = 0; r < t.rows; ++r) {
      const Site at = problem.site(t.batch, t.head[r], t.row[r], j);
      const bool sees = problem.sees(at);
      EXPECT_EQ(at.query, t.query[r]);
      n.seen_but_missed += sees && !visited;
      if (!visited) continue;
      seen += sees, ++all;
      if (part.cover == Cover::kPartial) n.wrong_words += sees != bool(words[size_t(j - part.first)] >> r & 1);
    }
  }
  if (part.cover == Cover::kHidden) return;
  ++n.parts;
  n.full += part.cover == Cover::kFull;
  n.hidden_but_visited += seen == 0;
  n.full_but_hides += part.cover == Cover::kFull && seen != all;
}

Counts count(const Example& e, int query_tile, int vector) {
  Counts n;
  const Inputs in = e.inputs();
  const reference::Problem problem(e.attention, in);
  CallArena arena;
  const qkv::Bound b(e.attention, in, arena, "test");
  const Plan plan(b, query_tile, vector, arena);
  int64_t rows = 0, wanted = 0;
  for (int batch = 0; batch < b.batch(); ++batch) {
    wanted += problem.queries(batch) * problem.query_heads();
    for (int unit = 0; unit < plan.units(batch); ++unit)
      for (int tile = 0; tile < plan.tiles_of(batch); ++tile) {
        RowTile t;
        plan.tile(b, batch, unit, tile, t);
        rows += t.rows;
        const Entry& entry = b.entries[size_t(batch)];
        const KeyRange blocks = blocks_of(entry, {0, std::max(entry.keys, 1)});
        for (int32_t block = blocks.first; block < blocks.last; ++block) {
          KeyRange columns = columns_of_block(entry, block);
          columns = {std::max(columns.first, 0), std::min(columns.last, entry.keys)};
          compare(b, problem, t, columns, n);
        }
      }
  }
  EXPECT_EQ(rows, wanted) << "every row is in one tile";
  return n;
}

void expect_exact(Case c, const std::vector<const Step*>& chosen) {
  Attention a;
  std::string names;
  for (const Step* step : chosen) step->add(c, a), names += std::string(names.empty() ? "" : ", ") + step->name;
  Example e(c);
  e.attention = a.align(c.align);
  for (const auto& [query_tile, vector] : {std::pair{24, 8}, {48, 16}}) {  // AVX2's and AVX-512's
    const Counts n = count(e, query_tile, vector);
    EXPECT_EQ(n.hidden_but_visited, 0) << names << " " << c << " tiles of " << query_tile;
    EXPECT_EQ(n.full_but_hides, 0) << names << " " << c << " tiles of " << query_tile;
    EXPECT_EQ(n.seen_but_missed, 0) << names << " " << c << " tiles of " << query_tile;
    EXPECT_EQ(n.wrong_words, 0) << names << " " << c << " tiles of " << query_tile;
  }
}

/// f(combination) of up to `most` steps.
template <class F> void each_combination(size_t most, F f) {
  for (size_t set = 0; set < size_t{1} << steps().size(); ++set) {
    std::vector<const Step*> chosen;
    for (size_t s = 0; s < steps().size(); ++s)
      if (set >> s & 1) chosen.push_back(&steps()[s]);
    if (chosen.size() <= most) f(chosen);
  }
}

const Case kShapes[] = {
    {.queries = 60, .keys = 150, .head_dim = 1, .align = Align::kBottomRight},
    {.queries = 3,
     .keys = 270,
     .head_dim = 1,
     .align = Align::kBottomRight,
     .query_offset = true,
     .key_start = true,
     .mask_axes = 12},
    {.group = 4, .queries = 7, .keys = 140, .head_dim = 1, .align = Align::kTopLeft, .mask_axes = 12},
    {.batch = 2, .group = 2, .queries = 31, .keys = 60, .head_dim = 1, .packed = true, .align = Align::kBottomRight},
};

TEST(TileMap, OfEveryPairOfPatternsIsExact) {
  for (const Case& c : kShapes) each_combination(2, [&](const auto& chosen) { expect_exact(c, chosen); });
}

TEST(SlowTileMap, OfEveryTripleOfPatternsIsExact) {
  for (Case c : kShapes)
    for (const unsigned seed : {1u, 2u}) {
      c.seed = seed;
      each_combination(3, [&](const auto& chosen) { expect_exact(c, chosen); });
    }
}

TEST(TileMap, OfTriplesIsExactOnOneShape) {
  each_combination(3, [&](const auto& chosen) {
    if (chosen.size() == 3)
      expect_exact({.queries = 30, .keys = 140, .head_dim = 1, .align = Align::kBottomRight, .mask_axes = 12}, chosen);
  });
}

TEST(TileMap, FindsFullTilesWherePairsAreHiddenOneByOne) {
  // Documents of 256 tokens: blocks within one document are full, although every pair was asked for.
  Example e(Case{.queries = 512, .keys = 512, .head_dim = 1, .documents = true});
  for (Tensor* t : {&e.query_documents, &e.key_documents})
    t->fill([](int64_t, int64_t i, int64_t, int64_t) { return i / 256; });
  const Counts n = count(e, 24, 8);
  EXPECT_GT(n.full, 30);
  EXPECT_LE(n.parts - n.full, 4) << "only tiles that hold the border are partial";
}

TEST(TileMap, CausalTilesAreCountedAsTheyAre) {
  constexpr int64_t kLength = 1024, kBlocks = kLength / kernels::kKeyBlock;
  const Example e(Case{.queries = kLength, .keys = kLength, .head_dim = 1, .causal = true});
  const Path path = find_path(e.attention, e.inputs());
  int64_t visited = 0, full = 0, tiles = 0;
  for (int64_t first = 0; first < kLength; first += path.query_tile, ++tiles) {
    const int64_t last = std::min<int64_t>(kLength, first + path.query_tile);  // row `first` sees keys 0 to first
    visited += (last + kernels::kKeyBlock - 1) / kernels::kKeyBlock;
    full += (first + 1) / kernels::kKeyBlock;
  }
  EXPECT_EQ(path.visited_tiles, visited);
  EXPECT_EQ(path.full_tiles, full);
  EXPECT_EQ(path.skipped_tiles, tiles * kBlocks - visited);
}

}  // namespace
}  // namespace qkv::testing
