// What an attention lets each query see, pair by pair from the specification of its patterns: for pictures and small inputs.
#include <algorithm>
#include <array>
#include <limits>

#include "attention/bind.h"
#include "attention/check.h"
#include "core/format.h"
#include "core/parallel.h"
#include "qkv/masks.h"

namespace qkv {
namespace {

constexpr uint8_t kVisible = 0, kNoColumn = 1, kFirstRule = 2;

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

/// write(b, h, i, j, rule) for every pair of the result. Rows are work items.
template <class F> void for_each_pair(const Bound& bound, const Call& call, F&& write) {
  const int64_t rows_of_entry = bound.query_heads * bound.longest_query;
  parallel(call, bound.batch() * rows_of_entry, [&](int64_t item) {
    const int b = int(item / rows_of_entry), h = int(item % rows_of_entry / bound.longest_query);
    const int i = int(item % bound.longest_query);
    const Entry& e = bound.entries[size_t(b)];
    for (int j = 0; j < bound.longest_key; ++j) {
      const bool exists = i < e.queries && j < e.keys;
      write(b, h, i, j, exists ? rule_of(bound, {b, h, i, j, e.offset + i, e.key_start + j}) : kNoColumn);
    }
  });
}

}  // namespace

void keep_mask_of(const Attention& attention, const Inputs& inputs, View<bool> keep, const Call& call) {
  CallArena arena;
  const Bound bound(attention, inputs, arena, "keep_mask_of");
  check_result("keep_mask_of", "keep", View<const bool>(keep), bound);
  for_each_pair(bound, call, [&](int b, int h, int i, int j, uint8_t rule) { keep(b, h, i, j) = rule == kVisible; });
}

void hiding_rule_of(const Attention& attention, const Inputs& inputs, View<uint8_t> rule, const Call& call) {
  CallArena arena;
  const Bound bound(attention, inputs, arena, "hiding_rule_of");
  check_result("hiding_rule_of", "rule", View<const uint8_t>(rule), bound);
  for_each_pair(bound, call, [&](int b, int h, int i, int j, uint8_t which) { rule(b, h, i, j) = which; });
}

}  // namespace qkv
