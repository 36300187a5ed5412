// How a call is cut into work items. Depends on shapes only, never on the number of threads; no bit of the result depends
// on it, since sums start afresh at absolute positions and are merged in their order whoever made them.
#pragma once
#include <cstdint>
#include <span>

#include "attention/tile_map.h"

namespace qkv {

/// How the rows of a batch entry become tiles.
enum class Rows : uint8_t {
  kPerHead,  ///< tiles of one query head
  kFolded,   ///< several query heads of a key head in one tile: few queries
  kDecode    ///< all query heads of a key head, lanes are keys: very few rows
};

/// Consecutive tiles of one batch entry that share blocks of keys and values while those are in the cache.
struct Slot {
  int32_t batch;
  int32_t first_tile, tiles;
  int32_t chunks;              ///< chunks that are items of their own; 1: one item goes through all
  int64_t first_item;          ///< of the call; items of a slot: units * chunks
  int64_t first_tile_of_call;  ///< tiles before it in partial results, units * tiles * chunks of them
};

struct Plan {
  Plan(const Bound&, int query_tile, int vector, CallArena&);

  Rows rows_of(int batch) const { return rows_[batch]; }
  int units(int batch) const { return rows_[batch] == Rows::kPerHead ? query_heads_ : key_heads_; }
  int tiles_of(int batch) const;
  /// The n-th tile of a unit: a query head, or a key head where heads are folded.
  void tile(const Bound&, int batch, int unit, int n, RowTile&) const;
  const Slot& slot_of_item(int64_t item) const;

  std::span<const Slot> slots;
  int64_t items = 0;
  int64_t partial_tiles = 0;  ///< tiles times chunks of the slots that are split
  int most_tiles = 0;         ///< of a slot
  int vector = 1, query_tile = 0;

 private:
  int heads_per_tile(int batch) const;
  const Bound* bound_;
  const Rows* rows_;
  int query_heads_, key_heads_;
};

}  // namespace qkv
