// Which keys a tile of queries visits. Ranges of rows classify blocks exactly; where pairs are hidden one by one, the pairs
// of a block are counted: nobody sees any, the block is dropped; everybody sees all, it is promoted to full.
#pragma once
#include <cstdint>
#include <span>

#include "attention/bind.h"
#include "kernels/kernels.h"

namespace qkv {

/// Some rows of one batch entry that share a key head: `heads` query heads times the same rows of each.
struct RowTile {
  static constexpr int kPadded = kernels::kMaxLanes + 16;

  int32_t batch = 0, key_head = 0;
  int32_t rows = 0;  ///< heads * rows of each
  int32_t heads = 1;
  int32_t lanes = 0;                                    ///< rows, padded to whole vectors and to a multiple of 8
  int32_t head[kPadded], row[kPadded], query[kPadded];  ///< padding repeats the last
  int32_t first[kPadded], last[kPadded];                ///< what each row sees as far as exact patterns know
  KeyRange hull{0, 0};                                  ///< of all rows
  KeyRange core{0, 0};                                  ///< what every row sees
  int64_t first_query = 0;                              ///< of the entry in packed tensors

  int32_t rows_of_head() const { return rows / heads; }
  /// Row r in tensors that have one row a query: query, out, lse, statistics.
  void* in(const RowsOf& tensor, int r) const { return tensor.at(batch, head[r], first_query + row[r]); }
};

/// Columns and positions of n keys from column `first` on; padding repeats the last. column, key {padded}
void number_keys(const Entry&, int32_t first, int n, int padded, int32_t* column, int32_t* key);

/// Rows [first_row, first_row + n) of `heads` heads, from the n-th query head of the key head on. `vector`: elements of one.
void make_tile(const Bound&, int batch, int key_head, int first_head, int heads, int first_row, int n, int vector,
               RowTile&);
/// The same for chosen rows of one query head.
void make_tile(const Bound&, int batch, int query_head, std::span<const int32_t> rows, int vector, RowTile&);

enum class Cover : uint8_t { kHidden, kPartial, kFull };

/// The visited part of a block: columns, and whether all rows see all of them.
struct Part {
  int32_t first = 0, last = 0;
  Cover cover = Cover::kHidden;
  int32_t keys() const { return last - first; }
};

/// Blocks stand at absolute positions: block b holds the columns [128 b, 128 b + 128) - key_start.
inline int32_t block_of(const Entry& e, int32_t column) { return (column + e.key_start) / kernels::kKeyBlock; }
inline KeyRange columns_of_block(const Entry& e, int32_t block) {
  return {block * kernels::kKeyBlock - e.key_start, (block + 1) * kernels::kKeyBlock - e.key_start};
}
/// Blocks [first, last) that a range of columns meets.
inline KeyRange blocks_of(const Entry& e, KeyRange columns) {
  if (columns.empty()) return {0, 0};
  return {block_of(e, columns.first), block_of(e, columns.last - 1) + 1};
}

/// What the tile visits of these columns, as far as ranges know.
Part classify(const RowTile&, KeyRange columns);

/// The same with everything that hides. Fills words {128}: bit r of word j says whether row r sees column part.first + j,
/// where the part is partial.
Part look(const Bound&, const RowTile&, KeyRange columns, uint64_t* words);

}  // namespace qkv
