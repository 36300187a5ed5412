#include "attention/dropout.h"

#include <algorithm>

#include "core/bits.h"

namespace qkv {
namespace {

/// From the generator, which counts positions and begins at multiples of 8.
void draw(const Bound& b, const RowTile& t, int first_row, int rows, int32_t key, int columns, uint64_t* keep) {
  const int shift = key % 8, words = words_of(columns), drawn_words = words_of(columns + shift);
  kernels::Draws draws{b.dropout.seed,     b.dropout.threshold, t.batch, key - shift, rows,
                       t.head + first_row, t.query + first_row};
  if (shift == 0) return kernels::dropout_kernel()(draws, words, keep);
  draws.rows = 1;
  for (int r = 0; r < rows; ++r, ++draws.head, ++draws.query, keep += words) {
    uint64_t drawn[kMostColumns / 64 + 2] = {};
    kernels::dropout_kernel()(draws, drawn_words, drawn);
    for (int n = 0; n < words; ++n) keep[n] = drawn[n] >> shift | drawn[n + 1] << (64 - shift);
  }
}

void look_up(const Bound& b, const RowTile& t, int first_row, int rows, int32_t column, int columns, uint64_t* keep) {
  const auto given = b.dropout.keep.as<const bool>();
  for (int r = first_row; r < first_row + rows; ++r, keep += words_of(columns)) {
    std::fill_n(keep, words_of(columns), uint64_t{0});
    for (int j = 0; j < columns; ++j) {
      const bool kept = given.data[given.broadcast_offset(t.batch, t.head[r], t.row[r], column + j)];
      keep[j / 64] |= uint64_t{kept} << (j % 64);
    }
  }
}

}  // namespace

void keep_of_rows(const Bound& b, const RowTile& t, int first_row, int rows, KeyRange columns, uint64_t* keep) {
  const int n = columns.last - columns.first;
  if (b.dropout.keep) look_up(b, t, first_row, rows, columns.first, n, keep);
  else draw(b, t, first_row, rows, columns.first + b.entries[size_t(t.batch)].key_start, n, keep);
}

void keep_of_keys(const Bound& b, const RowTile& t, KeyRange columns, uint64_t* keep) {
  const int n = columns.last - columns.first, words = words_of(n);
  uint64_t by_row[RowTile::kPadded * (kernels::kKeyBlock / 64)];
  keep_of_rows(b, t, 0, t.rows, columns, by_row);
  for (int w = 0; w < words; ++w) {
    uint64_t square[64] = {};
    for (int r = 0; r < t.rows; ++r) square[r] = by_row[r * words + w];
    transpose_bits(square);
    std::copy_n(square, std::min(64, n - 64 * w), keep + 64 * w);
  }
}

}  // namespace qkv
