#include "attention/tile_state.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "attention/dropout.h"

namespace qkv {
namespace {

constexpr int kBlock = kernels::kKeyBlock;
template <class T> constexpr T kMinusInf = -std::numeric_limits<T>::infinity();

/// Asks for the n-th of `shares` shares of the block that begins at column `first`: keys and values come from the L3 cache
/// or from memory while the tiles work on the block before.
void prefetch(const Bound& b, const RowsOf& rows, int batch, int head, int width, int32_t first, size_t n,
              size_t shares) {
  const Entry& e = b.entries[size_t(batch)];
  const size_t left = size_t(std::clamp(e.keys - first, 0, kBlock));
  const int64_t bytes = rows.column == 1 ? width * rows.element : 0;
  for (size_t j = left * n / shares; j < left * (n + 1) / shares; ++j) {
    const char* row = static_cast<const char*>(rows.at(batch, head, e.first_key + first + int64_t(j)));
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }
}

}  // namespace

template <class T>
void words_of_scores(const T* s, int row_stride, int key_stride, int rows, int keys, uint64_t* words) {
  for (int j = 0; j < keys; ++j) {
    words[j] = 0;
    for (int r = 0; r < rows; ++r) words[j] |= uint64_t(!(s[r * row_stride + j * key_stride] == kMinusInf<T>)) << r;
  }
}

template <class T> void TileSums<T>::carve(Carver& c, const Bound& b, int lanes, int top, bool with_statistics) {
  m = c.take<T>(lanes);
  l = c.take<T>(lanes);
  o = c.take<T>(int64_t{b.value_dim} * lanes);
  with_rows = with_statistics;
  if (with_rows) rows.carve(c, lanes, top);
}

template <class T> void TileSums<T>::reset(const Bound& b, int lanes) {
  std::fill_n(m, lanes, kMinusInf<T>);
  std::fill_n(l, lanes, T(0));
  std::fill_n(o, int64_t{b.value_dim} * lanes, T(0));
  if (with_rows) rows.reset(lanes);
}

template <class T>
void TileSums<T>::merge(const TileSums& later, const Bound& b, const Steps<T>& steps, const RowTile& t) {
  if (with_rows) rows.merge(t.rows, m, l, later.rows, later.m, later.l);
  steps.prefill.merge(m, l, o, later.m, later.l, later.o, b.value_dim, t.lanes);
}

template <class T> void TileSums<T>::copy_from(const TileSums& from, const Bound& b, int lanes) {
  std::copy_n(from.m, lanes, m);
  std::copy_n(from.l, lanes, l);
  std::copy_n(from.o, int64_t{b.value_dim} * lanes, o);
  if (!with_rows) return;
  std::copy_n(from.rows.centred, lanes, rows.centred);
  std::copy_n(from.rows.distance, lanes, rows.distance);
  std::copy_n(from.rows.largest, lanes, rows.largest);
  std::copy_n(from.rows.largest_at, lanes, rows.largest_at);
  std::copy_n(from.rows.visible, lanes, rows.visible);
  std::copy_n(from.rows.top_score, int64_t{lanes} * rows.top, rows.top_score);
  std::copy_n(from.rows.top_at, int64_t{lanes} * rows.top, rows.top_at);
}

template <class T> void BlockScratch<T>::carve(Carver& c, const Bound& b, int tiles) {
  constexpr int kLanes = kernels::kMaxLanes;
  s = c.take<T>(kBlock * kLanes);
  score_copy = c.take<T>(kBlock * kLanes);
  rows = c.take<T>(int64_t{kLanes} * std::max(b.head_dim, b.value_dim));
  keys = c.take<T>(int64_t{kBlock} * b.head_dim);
  values = c.take<T>(int64_t{kBlock} * b.value_dim);
  transposed = c.take<T>(std::max<int64_t>(kernels::DecodeKernels<T>::scratch(b.head_dim), int64_t{kBlock} * 16));
  alpha = c.take<T>(kLanes);
  before = c.take<T>(kLanes);
  column = c.take<int32_t>(kBlock + 16);
  key = c.take<int32_t>(kBlock + 16);
  words = c.take<uint64_t>(int64_t{tiles} * kBlock);
  seen = c.take<uint64_t>(kBlock);
  keep = c.take<uint64_t>(kBlock);
  parts = c.take<Part>(tiles);
  part_words = c.take<kernels::Words>(tiles);
}

template <class T> void TileState<T>::carve(Carver& c, const Bound& b, int top, bool with_statistics) {
  q = c.take<T>(int64_t{b.head_dim} * kernels::kMaxLanes);
  o_rows = c.take<T>(int64_t{b.value_dim} * kernels::DecodeKernels<T>::kMaxRows);
  chunk.carve(c, b, kernels::kMaxLanes, top, with_statistics);
  total.carve(c, b, kernels::kMaxLanes, top, with_statistics);
}

template <class T> void TileState<T>::start(const Bound& b, const Steps<T>& steps, BlockScratch<T>& scratch) {
  steps.pack_queries(b, tile, decode, q, scratch.rows);
  total.reset(b, tile.lanes);
}

template <class T> void TileState<T>::begin_chunk(const Bound& b) {
  chunk.reset(b, tile.lanes);
  if (decode) std::fill_n(o_rows, int64_t{tile.rows} * b.value_dim, T(0));
}

template <class T> void TileState<T>::end_chunk(const Bound& b, const Steps<T>& steps) {
  if (decode) steps.rows.transpose(o_rows, b.value_dim, tile.rows, b.value_dim, T(1), chunk.o, tile.lanes);
  total.merge(chunk, b, steps, tile);
}

template <class T>
Steps<T>::Steps(const Bound& b)
    : rows(kernels::row_kernels<T>()),
      prefill(kernels::prefill_kernels<T>()),
      decode(kernels::decode_kernels<T>()),
      type(kDType<T>),
      scale(T(b.scale)) {}

template <class T> void Steps<T>::pack_queries(const Bound& b, const RowTile& t, bool by_row, T* q, T* scratch) const {
  if (b.head_dim == 0) return;
  const int n = t.rows_of_head();
  if (!by_row && t.lanes > t.rows) std::fill_n(q, int64_t{b.head_dim} * t.lanes, T(0));
  for (int h = 0; h < t.heads; ++h) {
    // Chosen rows need not follow each other: as many at a time as do.
    for (int i = h * n, last; i < (h + 1) * n; i = last) {
      last = i + 1;
      while (last < (h + 1) * n && t.row[last] == t.row[last - 1] + 1) ++last;
      const void* from = t.in(b.query, i);
      const T* src = static_cast<const T*>(from);
      int64_t stride = b.query.row;
      if (b.query.type != type || b.query.column != 1) {
        rows.load(from, b.query.type, b.query.row, b.query.column, last - i, b.head_dim, scratch, b.head_dim);
        src = scratch;
        stride = b.head_dim;
      }
      if (!by_row) {
        rows.transpose(src, stride, last - i, b.head_dim, scale, q + i, t.lanes);
      } else {
        for (int r = 0; r < last - i; ++r)
          for (int e = 0; e < b.head_dim; ++e) q[int64_t{i + r} * b.head_dim + e] = src[r * stride + e] * scale;
      }
    }
  }
}

template <class T>
BlockRows<T> Steps<T>::fetch(const RowsOf& from, int batch, int head, int width, int64_t first, int n,
                             T* scratch) const {
  if (width == 0) return {scratch, 0};
  const void* at = from.at(batch, head, first);
  if (from.type == type && (from.column == 1 || width <= 1)) return {static_cast<const T*>(at), from.row};
  rows.load(at, from.type, from.row, from.column, n, width, scratch, width);
  return {scratch, width};
}

template <class T>
void Steps<T>::modify(const Bound& b, const TileState<T>& state, int32_t first, int n, BlockScratch<T>& scratch) const {
  const RowTile& t = state.tile;
  number_keys(b.entries[size_t(t.batch)], first, n, n + 16, scratch.column, scratch.key);
  const int row_stride = state.decode ? kBlock : 1, key_stride = state.decode ? 1 : t.lanes;
  const Sites sites{t.rows, n, row_stride, key_stride, t.batch, t.head, t.row, t.query, scratch.column, scratch.key};
  for (const passes::Score* pass : b.scores) pass->forward(Tile<T>{sites, scratch.s});
}

template <class T>
void Steps<T>::scores(const Bound& b, const TileState<T>& state, BlockRows<T> keys, int32_t first, int n,
                      BlockScratch<T>& scratch) const {
  if (state.decode)
    decode.scores(state.q, state.tile.rows, keys.first, keys.stride, n, b.head_dim, scratch.s, scratch.transposed);
  else prefill.scores(state.q, state.tile.lanes, keys.first, keys.stride, n, b.head_dim, scratch.s);
  if (!b.scores.empty()) modify(b, state, first, n, scratch);
}

template <class T>
void Steps<T>::attend(const Bound& b, TileState<T>& state, Part part, kernels::Words words, BlockRows<T> keys,
                      BlockRows<T> values, bool finite, BlockScratch<T>& scratch) const {
  const RowTile& t = state.tile;
  TileSums<T>& sums = state.chunk;
  const int n = part.keys();
  T* s = scratch.s;
  scores(b, state, keys, part.first, n, scratch);
  if (sums.with_rows) std::copy_n(sums.m, t.lanes, scratch.before);
  prefill.raise_max(s, n, t.lanes, words, sums.m, scratch.alpha);
  if (sums.with_rows) {
    sums.rows.rescale(t.rows, scratch.before, sums.m, scratch.alpha, sums.l);
    std::memcpy(scratch.score_copy, s, size_t(n) * size_t(t.lanes) * sizeof(T));
  }
  if (!finite) words_of_scores(s, 1, t.lanes, t.rows, n, scratch.seen);
  prefill.exponentiate(s, n, t.lanes, sums.m, scratch.alpha, sums.l);
  if (sums.with_rows)
    sums.rows.add(t, scratch.score_copy, s, t.lanes, n, part.first, b.entries[size_t(t.batch)].key_start, sums.m);
  if (b.dropout) {
    keep_of_keys(b, t, {part.first, part.last}, scratch.keep);
    prefill.drop(s, n, t.lanes, scratch.keep, T(b.dropout.factor));
  }
  prefill.accumulate(sums.o, s, t.lanes, values.first, values.stride, n, b.value_dim, scratch.alpha,
                     finite ? nullptr : scratch.seen);
}

template <class T>
void Steps<T>::attend_decode(const Bound& b, TileState<T>& state, Part part, kernels::Words words, BlockRows<T> keys,
                             BlockRows<T> values, bool finite, BlockScratch<T>& scratch) const {
  const RowTile& t = state.tile;
  TileSums<T>& sums = state.chunk;
  const int n = part.keys();
  T* s = scratch.s;
  scores(b, state, keys, part.first, n, scratch);
  if (sums.with_rows) std::copy_n(sums.m, t.rows, scratch.before);
  decode.raise_max(s, t.rows, n, words, sums.m, scratch.alpha);
  if (sums.with_rows) {
    sums.rows.rescale(t.rows, scratch.before, sums.m, scratch.alpha, sums.l);
    rows.transpose(s, kBlock, t.rows, n, T(1), scratch.score_copy, t.lanes);
  }
  if (!finite) words_of_scores(s, kBlock, 1, t.rows, n, scratch.seen);
  decode.exponentiate(s, t.rows, n, sums.m, scratch.alpha, sums.l);
  if (sums.with_rows) {
    rows.transpose(s, kBlock, t.rows, n, T(1), scratch.transposed, t.lanes);
    sums.rows.add(t, scratch.score_copy, scratch.transposed, t.lanes, n, part.first,
                  b.entries[size_t(t.batch)].key_start, sums.m);
  }
  if (b.dropout) {
    keep_of_keys(b, t, {part.first, part.last}, scratch.keep);
    for (int j = 0; j < n; ++j)
      for (int r = 0; r < t.rows; ++r) {
        T& p = s[r * kBlock + j];
        p = scratch.keep[j] >> r & 1 ? p * T(b.dropout.factor) : T(0);
      }
  }
  decode.accumulate(state.o_rows, s, t.rows, values.first, values.stride, n, b.value_dim, scratch.alpha,
                    finite ? nullptr : scratch.seen);
}

template <class T>
void Steps<T>::block(const Bound& b, const MaskBand& masks, const Slot& slot, int unit, int32_t block,
                     std::span<TileState<T>> states, BlockScratch<T>& scratch) const {
  KeyRange all{std::numeric_limits<int32_t>::max(), 0};
  bool partial = false;
  for (size_t n = 0; n < states.size(); ++n) {
    Part& part = scratch.parts[n];
    part = masks.part(b, slot, unit, int(n), states[n].tile, block, scratch.words + n * kBlock, scratch.part_words[n]);
    if (part.cover == Cover::kHidden) continue;
    all = {std::min(all.first, part.first), std::max(all.last, part.last)};
    partial |= part.cover == Cover::kPartial;
  }
  if (all.empty()) return;
  const int key_head = states[0].tile.key_head, batch = slot.batch, n = all.last - all.first;
  const BlockRows<T> keys = fetch(b, b.key, batch, key_head, b.head_dim, all.first, n, scratch.keys);
  const BlockRows<T> values = fetch(b, b.value, batch, key_head, b.value_dim, all.first, n, scratch.values);
  // Only where something is hidden can a value that is not finite do harm.
  const bool finite = (!partial && b.scores.empty()) || prefill.all_finite(values.first, values.stride, n, b.value_dim);
  for (size_t i = 0; i < states.size(); ++i) {
    prefetch(b, b.key, batch, key_head, b.head_dim, all.last, i, states.size());
    prefetch(b, b.value, batch, key_head, b.value_dim, all.last, i, states.size());
    const Part part = scratch.parts[i];
    if (part.cover == Cover::kHidden) continue;
    const BlockRows<T> k{keys.row(part.first - all.first), keys.stride},
        v{values.row(part.first - all.first), values.stride};
    if (states[i].decode) attend_decode(b, states[i], part, scratch.part_words[i], k, v, finite, scratch);
    else attend(b, states[i], part, scratch.part_words[i], k, v, finite, scratch);
  }
}

template void words_of_scores(const float*, int, int, int, int, uint64_t*);
template void words_of_scores(const double*, int, int, int, int, uint64_t*);
template struct TileSums<float>;
template struct TileSums<double>;
template struct BlockScratch<float>;
template struct BlockScratch<double>;
template struct TileState<float>;
template struct TileState<double>;
template struct Steps<float>;
template struct Steps<double>;

}  // namespace qkv
