#include "attention/dropout.h"

#include <algorithm>

#include "core/bits.h"

namespace qkv {
namespace {

/// From the generator, which counts positions and begins at multiples of 8.
void draw(const Bound& b, Site at, int columns, uint64_t* keep) {
  constexpr int kMost = kMostColumns / 64 + 1;
  uint64_t drawn[kMost + 1] = {};
  const int shift = at.key % 8;
  at.key -= shift;
  kernels::dropout_kernel()(b.dropout.seed, b.dropout.threshold, at, words_of(columns + shift), drawn);
  for (int n = 0; n < words_of(columns); ++n)
    keep[n] = shift == 0 ? drawn[n] : drawn[n] >> shift | drawn[n + 1] << (64 - shift);
}

void look_up(const Bound& b, const Site& at, int columns, uint64_t* keep) {
  const auto given = b.dropout.keep.as<const bool>();
  std::fill_n(keep, words_of(columns), uint64_t{0});
  for (int j = 0; j < columns; ++j) {
    const bool kept = given.data[given.broadcast_offset(at.batch, at.head, at.row, at.column + j)];
    keep[j / 64] |= uint64_t{kept} << (j % 64);
  }
}

}  // namespace

void keep_of_rows(const Bound& b, const RowTile& t, int first_row, int rows, KeyRange columns, uint64_t* keep) {
  const int n = columns.last - columns.first, words = words_of(n);
  const int32_t start = b.entries[size_t(t.batch)].key_start;
  for (int r = first_row; r < first_row + rows; ++r, keep += words) {
    const Site at{t.batch, t.head[r], t.row[r], columns.first, t.query[r], columns.first + start};
    if (b.dropout.keep) look_up(b, at, n, keep);
    else draw(b, at, n, keep);
    keep[words - 1] &= low_bits(n - 64 * (words - 1));
  }
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
