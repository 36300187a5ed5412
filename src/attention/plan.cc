#include "attention/plan.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace qkv {
namespace {

constexpr int kMostTiles = 12;  // that share a block of keys and values
constexpr int kManyItems = 28;  // enough to keep threads busy: more tiles may share then
constexpr int kFewItems = 32;   // fewer: chunks of keys become items of their own

Rows choose_rows(const Bound& b, const Entry& e, int query_tile) {
  const int64_t together = int64_t{b.group()} * e.queries;
  if (together <= kernels::DecodeKernels<float>::kMaxRows) return Rows::kDecode;
  return b.group() > 1 && e.queries <= query_tile / 2 ? Rows::kFolded : Rows::kPerHead;
}

int chunks_of(const Entry& e) {
  if (e.keys == 0) return 1;
  return (e.key_start + e.keys - 1) / kernels::kChunk - e.key_start / kernels::kChunk + 1;
}

}  // namespace

int Plan::heads_per_tile(int batch) const {
  const Rows kind = rows_[batch];
  if (kind == Rows::kPerHead) return 1;
  if (kind == Rows::kDecode) return bound_->group();
  return std::min(bound_->group(), query_tile / bound_->entries[size_t(batch)].queries);
}

int Plan::tiles_of(int batch) const {
  const Entry& e = bound_->entries[size_t(batch)];
  if (e.queries == 0 || query_heads_ == 0) return 0;
  if (rows_[batch] == Rows::kPerHead) return int(ceil_div(e.queries, query_tile));
  return int(ceil_div(bound_->group(), heads_per_tile(batch)));
}

void Plan::tile(const Bound& b, int batch, int unit, int n, RowTile& t) const {
  const Entry& e = b.entries[size_t(batch)];
  if (rows_[batch] == Rows::kPerHead) {
    const int first = n * query_tile;
    const int key_head = b.key_head(unit);
    const int nth = b.tiled ? unit / b.key_heads : unit % b.group();
    make_tile(b, batch, key_head, nth, 1, first, std::min(query_tile, e.queries - first), vector, t);
  } else {
    const int heads = heads_per_tile(batch), first = n * heads;
    make_tile(b, batch, unit, first, std::min(heads, b.group() - first), 0, e.queries, vector, t);
  }
}

Plan::Plan(const Bound& b, int tile_rows, int vector_size, CallArena& arena)
    : vector(vector_size), query_tile(tile_rows), bound_(&b), query_heads_(b.query_heads), key_heads_(b.key_heads) {
  const int n = b.batch();
  Rows* kinds = arena.array_of<Rows>(size_t(n));
  rows_ = kinds;
  int64_t tiles = 0, all_slots = 0;
  for (int i = 0; i < n; ++i) {
    kinds[i] = choose_rows(b, b.entries[size_t(i)], query_tile);
    tiles += int64_t{tiles_of(i)} * units(i);
  }
  const int together = int(std::clamp<int64_t>(tiles / kManyItems, 1, kMostTiles));
  int64_t whole_items = 0;
  for (int i = 0; i < n; ++i) {
    all_slots += ceil_div(tiles_of(i), together);
    whole_items += ceil_div(tiles_of(i), together) * units(i);
  }
  Slot* slot = arena.array_of<Slot>(size_t(all_slots));
  slots = {slot, size_t(all_slots)};
  for (int i = 0; i < n; ++i) {
    const int of_entry = tiles_of(i);
    const int chunks = whole_items < kFewItems ? chunks_of(b.entries[size_t(i)]) : 1;
    // Last tiles first: under a causal mask they are the longest.
    for (int last = of_entry; last > 0; last -= together) {
      const int first = std::max(0, last - together);
      *slot++ = {i, first, last - first, chunks, items, partial_tiles};
      items += int64_t{units(i)} * chunks;
      if (chunks > 1) partial_tiles += int64_t{units(i)} * (last - first) * chunks;
      most_tiles = std::max(most_tiles, last - first);
    }
  }
}

const Slot& Plan::slot_of_item(int64_t item) const {
  const auto after =
      std::upper_bound(slots.begin(), slots.end(), item, [](int64_t i, const Slot& s) { return i < s.first_item; });
  return *(after - 1);
}

}  // namespace qkv
