// What an attention lets each query see. The mask goes by ranges and pieces of rows, as kernels do; which rule hides a pair is
// asked pair by pair, from the specification of the patterns: for pictures and small inputs.
#include <algorithm>
#include <array>
#include <limits>

#include "attention/bind.h"
#include "attention/check.h"
#include "attention/tile_map.h"
#include "core/format.h"
#include "core/parallel.h"
#include "qkv/masks.h"

namespace qkv {
namespace {

constexpr uint8_t kVisible = 0, kNoColumn = 1, kFirstRule = 2;
constexpr int kPiece = 512;  // columns that are looked at together, a multiple of 8

/// One pair as a tile: lanes are padded to 8 by repeating it.
class OnePair {
 public:
  explicit OnePair(Site at) : batch_(at.batch) {
    head_.fill(at.head), row_.fill(at.row), query_.fill(at.query), column_.fill(at.column), key_.fill(at.key);
  }
  bool hidden_by(const passes::Score& score) const {
    uint8_t visible[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    score.hide(Sites{1, 1, 1, 8, batch_, head_.data(), row_.data(), query_.data(), column_.data(), key_.data()},
               visible);
    return visible[0] == 0;
  }

 private:
  int32_t batch_;
  std::array<int32_t, 8> head_, row_, query_, column_, key_;
};

uint8_t rule_of(const Bound& bound, Site at) {
  uint8_t rule = kFirstRule;
  for (const passes::Pattern* pattern : bound.patterns) {
    if (!pattern->sees(at)) return rule;
    ++rule;
  }
  const OnePair pair(at);
  for (const passes::Score* score : bound.hiding) {
    if (pair.hidden_by(*score)) return rule;
    ++rule;
  }
  return kVisible;
}

void check_result(const char* function, const char* name, View<const void> v, const Bound& b) {
  const int64_t want[] = {b.batch(), b.query_heads, b.longest_query, b.longest_key};
  const Layout expected{std::span(want)};
  if (v.rank != 4 || v.shape != expected.shape)
    shape_error("{}: {} has shape {}, expected {}; allocate it so", function, name, v, expected);
  check::data(function, name, v);
  if (b.patterns.size() + b.hiding.size() > size_t(std::numeric_limits<uint8_t>::max() - kFirstRule))
    option_error("{}: the attention has {} rules that hide, but at most {} can be told apart", function,
                 b.patterns.size() + b.hiding.size(), std::numeric_limits<uint8_t>::max() - kFirstRule);
}

/// f(b, h, i) for every row of the result. Rows are work items.
template <class F> void for_each_row(const Bound& bound, const Call& call, F&& f) {
  const int64_t rows_of_entry = bound.query_heads * bound.longest_query;
  parallel(call, bound.batch() * rows_of_entry, [&](int64_t item) {
    f(int(item / rows_of_entry), int(item % rows_of_entry / bound.longest_query), int(item % bound.longest_query));
  });
}

/// visible[n] of column first + n &= what patterns and a bias hide pair by pair. visible {n, padded to a multiple of 8}
void hide_pairs(const Bound& bound, int b, int h, int i, int first, int n, uint8_t* visible) {
  const Entry& e = bound.entries[size_t(b)];
  int32_t column[kPiece], key[kPiece];
  number_keys(e, first, n, (n + 7) & ~7, column, key);
  const int32_t query = e.offset + i;
  const Sites sites{1, n, kPiece, 1, b, &h, &i, &query, column, key};
  for (const passes::Pattern* pattern : bound.general) pattern->hide(sites, visible);
  for (const passes::Score* score : bound.hiding) score->hide(sites, visible);
}

void write_row(const Bound& bound, int b, int h, int i, View<bool> keep) {
  const bool exists = i < bound.entries[size_t(b)].queries;
  const KeyRange seen = exists ? bound.range(b, h, i) : KeyRange{0, 0};
  const int keys = int(bound.longest_key);
  for (int j = 0; j < keys; ++j) keep(b, h, i, j) = seen.holds(j);
  if (!bound.has_general_masks()) return;
  for (int first = seen.first; first < seen.last; first += kPiece) {
    const int n = std::min(kPiece, seen.last - first);
    uint8_t visible[kPiece];
    std::fill_n(visible, kPiece, uint8_t{1});
    hide_pairs(bound, b, h, i, first, n, visible);
    for (int j = 0; j < n; ++j) keep(b, h, i, first + j) = visible[j] != 0;
  }
}

}  // namespace

void keep_mask_of(const Attention& attention, const Inputs& inputs, View<bool> keep, const Call& call) {
  CallArena arena;
  const Bound bound(attention, inputs, arena, "keep_mask_of");
  check_result("keep_mask_of", "keep", View<const bool>(keep), bound);
  for_each_row(bound, call, [&](int b, int h, int i) { write_row(bound, b, h, i, keep); });
}

void hiding_rule_of(const Attention& attention, const Inputs& inputs, View<uint8_t> rule, const Call& call) {
  CallArena arena;
  const Bound bound(attention, inputs, arena, "hiding_rule_of");
  check_result("hiding_rule_of", "rule", View<const uint8_t>(rule), bound);
  for_each_row(bound, call, [&](int b, int h, int i) {
    const Entry& e = bound.entries[size_t(b)];
    for (int j = 0; j < bound.longest_key; ++j) {
      const bool exists = i < e.queries && j < e.keys;
      rule(b, h, i, j) = exists ? rule_of(bound, {b, h, i, j, e.offset + i, e.key_start + j}) : kNoColumn;
    }
  });
}

}  // namespace qkv
