// Which weights of a tile dropout keeps, as bits.
#pragma once
#include <cstdint>

#include "attention/tile_map.h"

namespace qkv {

/// Words that a row takes for so many columns.
constexpr int words_of(int columns) { return (columns + 63) / 64; }

/// Bit j of keep[r * words + n] for row first_row + r and column columns.first + 64 n + j, where words is words_of() the columns.
/// Bits past the columns say nothing. At most kMostColumns of them.
inline constexpr int kMostColumns = 256;
void keep_of_rows(const Bound&, const RowTile&, int first_row, int rows, KeyRange columns, uint64_t* keep);

/// Bit r of keep[j] for row r of the tile and column columns.first + j, at most kKeyBlock of them.
void keep_of_keys(const Bound&, const RowTile&, KeyRange columns, uint64_t* keep);

}  // namespace qkv
