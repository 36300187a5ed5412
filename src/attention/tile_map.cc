#include "attention/tile_map.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/bits.h"
#include "core/ceil_div.h"

namespace qkv {
namespace {

constexpr int kBlock = kernels::kKeyBlock;

/// Fills the padding and the hull once the real rows stand.
void finish_tile(const Bound& b, RowTile& t, int vector) {
  t.first_query = b.entries[size_t(t.batch)].first_query;
  t.lanes = int32_t(round_up(t.rows, std::max(8, vector)));
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  t.hull = {kMost, 0};
  t.core = {0, kMost};
  for (int r = 0; r < t.rows; ++r) {
    t.core = {std::max(t.core.first, t.first[r]), std::min(t.core.last, t.last[r])};
    if (t.first[r] < t.last[r]) t.hull = {std::min(t.hull.first, t.first[r]), std::max(t.hull.last, t.last[r])};
  }
  if (t.hull.empty()) t.hull = {0, 0};
  for (int r = t.rows; r < t.lanes; ++r) {
    t.head[r] = t.head[t.rows - 1];
    t.row[r] = t.row[t.rows - 1];
    t.query[r] = t.query[t.rows - 1];
    t.first[r] = t.last[r] = 0;
  }
}

void set_row(const Bound& b, RowTile& t, int r, int head, int row) {
  t.head[r] = head;
  t.row[r] = row;
  t.query[r] = b.entries[size_t(t.batch)].offset + row;
  const KeyRange seen = b.range(t.batch, head, row);
  t.first[r] = seen.first;
  t.last[r] = seen.last;
}

/// Bits of the rows that see each column as far as ranges know. A row's bit flips where its range begins and where it ends.
void words_of_ranges(const RowTile& t, int rows, Part part, uint64_t* words) {
  uint64_t flips[kBlock + 1] = {};
  for (int r = 0; r < rows; ++r) {
    const int32_t first = std::max(t.first[r], part.first), last = std::min(t.last[r], part.last);
    if (first >= last) continue;
    flips[first - part.first] ^= uint64_t{1} << r;
    flips[last - part.first] ^= uint64_t{1} << r;
  }
  uint64_t seen = 0;
  for (int j = 0; j < part.keys(); ++j) words[j] = seen ^= flips[j];
}

/// Clears the bits of pairs that patterns or a bias hide one by one.
void hide_pairs(const Bound& b, const RowTile& t, int rows, Part part, uint64_t* words) {
  const Entry& e = b.entries[size_t(t.batch)];
  const int keys = part.keys();
  alignas(64) uint8_t visible[RowTile::kPadded * kBlock];
  int32_t column[kBlock + 8], key[kBlock + 8];
  number_keys(e, part.first, keys, keys + 8, column, key);
  // Lanes are keys: rows of masks run along keys.
  const Sites sites{rows, keys, kBlock, 1, t.batch, t.head, t.row, t.query, column, key};
  const auto may_hide = [&](const passes::Score* s) { return s->may_hide(sites); };
  if (b.general.empty() && std::none_of(b.hiding.begin(), b.hiding.end(), may_hide)) return;
  std::memset(visible, 1, size_t(rows) * kBlock);
  for (const passes::Pattern* p : b.general) p->hide(sites, visible);
  for (const passes::Score* s : b.hiding) s->hide(sites, visible);
  uint64_t seen[kBlock] = {};
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < keys; ++j) seen[j] |= uint64_t(visible[r * kBlock + j] != 0) << r;
  for (int j = 0; j < keys; ++j) words[j] &= seen[j];
}

/// Whether a pattern that names stretches sees any of these columns.
bool visits(const Bound& b, const RowTile& t, KeyRange columns) {
  const Entry& e = b.entries[size_t(t.batch)];
  for (const passes::Pattern* p : b.general) {
    if (!p->has_visit()) continue;
    Row rows[kernels::kMaxLanes];
    for (int r = 0; r < t.rows; ++r) rows[r] = {t.batch, t.head[r], t.row[r], t.query[r], {0, e.keys}, e.key_start};
    Stretches stretches;
    p->visit({rows, size_t(t.rows)}, stretches);
    const auto meets = [&](KeyRange s) { return std::max(s.first, columns.first) < std::min(s.last, columns.last); };
    if (std::none_of(stretches.begin(), stretches.end(), meets)) return false;
  }
  return true;
}

/// Repeats the bits of the first head for all heads of the tile.
void repeat_heads(const RowTile& t, int keys, uint64_t* words) {
  for (int j = 0; j < keys; ++j) {
    const uint64_t one = words[j];
    for (int h = 1; h < t.heads; ++h) words[j] |= one << (h * t.rows_of_head());
  }
}

}  // namespace

void number_keys(const Entry& e, int32_t first, int n, int padded, int32_t* column, int32_t* key) {
  for (int j = 0; j < padded; ++j) {
    column[j] = first + std::min(j, n - 1);
    key[j] = column[j] + e.key_start;
  }
}

void make_tile(const Bound& b, int batch, int key_head, int first_head, int heads, int first_row, int n, int vector,
               RowTile& t) {
  t.batch = batch;
  t.key_head = key_head;
  t.heads = heads;
  t.rows = heads * n;
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < n; ++i) set_row(b, t, h * n + i, b.query_head(key_head, first_head + h), first_row + i);
  finish_tile(b, t, vector);
}

void make_tile(const Bound& b, int batch, int query_head, std::span<const int32_t> rows, int vector, RowTile& t) {
  t.batch = batch;
  t.key_head = b.key_head(query_head);
  t.heads = 1;
  t.rows = int32_t(rows.size());
  for (int r = 0; r < t.rows; ++r) set_row(b, t, r, query_head, rows[size_t(r)]);
  finish_tile(b, t, vector);
}

Part classify(const RowTile& t, KeyRange columns) {
  if (t.core.first <= columns.first && columns.last <= t.core.last) return {columns.first, columns.last, Cover::kFull};
  Part part{columns.last, columns.first, Cover::kHidden};
  for (int r = 0; r < t.rows; ++r) {
    const int32_t first = std::max(t.first[r], columns.first), last = std::min(t.last[r], columns.last);
    if (first >= last) continue;
    part.first = std::min(part.first, first);
    part.last = std::max(part.last, last);
  }
  if (part.first >= part.last) return {};
  bool full = true;
  for (int r = 0; r < t.rows; ++r) full &= t.first[r] <= part.first && part.last <= t.last[r];
  part.cover = full ? Cover::kFull : Cover::kPartial;
  return part;
}

Part look(const Bound& b, const RowTile& t, KeyRange columns, uint64_t* words) {
  Part part = classify(t, columns);
  if (part.cover == Cover::kHidden) return part;
  if (!b.has_general_masks()) {
    if (part.cover == Cover::kPartial) words_of_ranges(t, t.rows, part, words);
    return part;
  }
  if (!visits(b, t, {part.first, part.last})) return {};
  const bool once = !b.masks_read_head && t.heads > 1;
  const int rows = once ? t.rows_of_head() : t.rows;
  words_of_ranges(t, rows, part, words);
  hide_pairs(b, t, rows, part, words);
  // Columns that nobody sees do not count at either end.
  int first = 0, last = part.keys();
  while (first < last && words[first] == 0) ++first;
  while (last > first && words[last - 1] == 0) --last;
  if (first == last) return {};
  std::memmove(words, words + first, size_t(last - first) * sizeof *words);
  part = {part.first + first, part.first + last, Cover::kPartial};
  const uint64_t all = low_bits(rows);
  if (std::all_of(words, words + part.keys(), [all](uint64_t w) { return w == all; })) part.cover = Cover::kFull;
  else if (once) repeat_heads(t, part.keys(), words);
  return part;
}

}  // namespace qkv
