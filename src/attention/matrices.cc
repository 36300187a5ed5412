#include "attention/matrices.h"

#include <algorithm>
#include <limits>

#include "attention/check.h"
#include "core/ceil_div.h"
#include "core/format.h"
#include "core/parallel.h"

namespace qkv {
namespace {

constexpr int kBlock = kernels::kKeyBlock;
template <class T> constexpr T kMinusInf = -std::numeric_limits<T>::infinity();

/// Scratch of an item of a sweep.
template <class T> void lay_out(Carver& c, const Bound& b, TileState<T>& state, BlockScratch<T>& scratch) {
  scratch.carve(c, b, 1);
  state.carve(c, b, 0, false);
}

}  // namespace

template <class T> void gather_sums(const RowTile& t, const RowsOf& row_max, const RowsOf& row_sum, T* m, T* l) {
  for (int r = 0; r < t.lanes; ++r) {
    m[r] = r < t.rows ? *static_cast<const T*>(t.in(row_max, r)) : kMinusInf<T>;
    l[r] = r < t.rows ? *static_cast<const T*>(t.in(row_sum, r)) : T(0);
  }
}

template <class T> Matrices<T>::Matrices(const Bound& b, const Outputs& o) : b_(b), chosen_(o.matrix_rows), steps_(b) {
  rows_ = b.longest_query;
  if (chosen_) {
    check::data("forward", "matrix_rows", chosen_);
    if (chosen_.rank != 1)
      shape_error("forward: matrix_rows has shape {}, expected {{n}}; pass the numbers of the rows", chosen_);
    rows_ = chosen_.shape[0];
    for (int64_t i = 0; i < rows_; ++i)
      if (chosen_(i) < 0 || chosen_(i) >= b.longest_query)
        option_error("forward: matrix_rows[{}] is {}, expected 0 to {}, a row of query; leave it out for all rows", i,
                     chosen_(i), b.longest_query - 1);
  }
  weights_ = check(o.weights, "weights");
  raw_ = check(o.raw_scores, "raw_scores");
  modified_ = check(o.modified_scores, "modified_scores");
  masked_ = check(o.masked_scores, "masked_scores");
}

template <class T> RowsOf Matrices<T>::check(View<const void> v, const char* name) const {
  if (!v) return {};
  check::data("forward", name, v);
  if (v.dtype != kDType<T>) dtype_error("forward: {} has type {}, expected {}", name, v.dtype, kDType<T>);
  const Extents want{b_.batch(), b_.query_heads, rows_, b_.longest_key};
  if (v.rank != 4 || v.shape != want)
    shape_error("forward: {} has shape {}, expected {}", name, v, Layout{std::span(want)});
  return rows_of(v, false, false);
}

template <class T> void Matrices<T>::ask_for_sums(Workspace::Impl& workspace, RowsOf& row_max, RowsOf& row_sum) const {
  if (!weights_ || (row_max && row_sum)) return;
  const int64_t rows = b_.packed ? b_.inputs.query.shape[0] : b_.batch() * b_.longest_query;
  const int64_t n = rows * b_.query_heads;
  T* memory = static_cast<T*>(workspace.row_sums.reserve(size_t(2 * n + 1) * sizeof(T)));
  for (RowsOf* to : {&row_max, &row_sum}) {
    if (*to) continue;
    T* first = memory + (to == &row_max ? 0 : n);
    const View<void> v = b_.packed ? View<T>(first, {rows, b_.query_heads})
                                   : View<T>(first, {b_.batch(), b_.query_heads, b_.longest_query});
    *to = rows_of(v, b_.packed, true);
  }
}

template <class T>
void Matrices<T>::write(Workspace::Impl& workspace, const RowsOf& row_max, const RowsOf& row_sum,
                        const Call& call) const {
  if (!wanted()) return;
  const int64_t tile = steps_.prefill.query_tile, tiles = ceil_div(rows_, tile);
  Carver size;
  TileState<T> counted;
  BlockScratch<T> counted_scratch;
  lay_out(size, b_, counted, counted_scratch);
  parallel(call, b_.batch() * tiles * b_.query_heads, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace, size.used());
    Carver carver(lease.data());
    TileState<T> state;
    BlockScratch<T> scratch;
    lay_out(carver, b_, state, scratch);
    const int head = int(item % b_.query_heads), batch = int(item / (tiles * b_.query_heads));
    const int64_t first = item / b_.query_heads % tiles * tile, n = std::min(tile, rows_ - first);
    for (const RowsOf* to : {&raw_, &modified_, &masked_}) fill(*to, batch, head, first, n, kMinusInf<T>);
    fill(weights_, batch, head, first, n, T(0));
    // Runs of rows that exist: of packed batches the shorter sequences end earlier.
    int32_t rows[kernels::kMaxLanes];
    for (int64_t i = 0; i < n;) {
      int32_t count = 0;
      const int64_t begin = i;
      for (; i < n; ++i) {
        const int32_t row = chosen_ ? chosen_(first + i) : int32_t(first + i);
        if (row >= b_.entries[size_t(batch)].queries) break;
        rows[count++] = row;
      }
      if (count > 0) {
        make_tile(b_, batch, head, {rows, size_t(count)}, steps_.prefill.vector, state.tile);
        write_tile(state, scratch, first + begin, row_max, row_sum, call);
      } else {
        ++i;
      }
    }
  });
}

template <class T>
void Matrices<T>::write_tile(TileState<T>& state, BlockScratch<T>& scratch, int64_t first_row, const RowsOf& row_max,
                             const RowsOf& row_sum, const Call& call) const {
  const Entry& e = b_.entries[size_t(state.tile.batch)];
  steps_.pack_queries(b_, state.tile, false, state.q, scratch.rows);
  if (weights_) {
    T m[RowTile::kPadded], l[RowTile::kPadded];
    gather_sums(state.tile, row_max, row_sum, m, l);
    const KeyRange blocks = blocks_of(e, state.tile.hull);
    for (int32_t block = blocks.first; block < blocks.last; ++block) {
      stop_point(call.stop);
      write_weights(state, scratch, first_row, block, m, l);
    }
  }
  if (raw_ || modified_ || masked_) {
    const KeyRange blocks = blocks_of(e, {0, e.keys});
    for (int32_t block = blocks.first; block < blocks.last; ++block) {
      stop_point(call.stop);
      write_scores(state, scratch, first_row, block);
    }
  }
}

template <class T>
void Matrices<T>::write_weights(TileState<T>& state, BlockScratch<T>& scratch, int64_t first_row, int32_t block,
                                const T* m, const T* l) const {
  const RowTile& t = state.tile;
  const Part part = look(b_, t, columns_of_block(b_.entries[size_t(t.batch)], block), scratch.words);
  if (part.cover == Cover::kHidden) return;
  const int n = part.keys();
  const BlockRows<T> keys = steps_.fetch(b_, b_.key, t.batch, t.key_head, b_.head_dim, part.first, n, scratch.keys);
  steps_.scores(b_, state, keys, part.first, n, scratch);
  std::copy_n(m, t.lanes, scratch.before);
  steps_.prefill.raise_max(scratch.s, n, t.lanes, part.cover == Cover::kPartial ? scratch.words : nullptr,
                           scratch.before, scratch.alpha);
  steps_.prefill.weights(scratch.s, n, t.lanes, m, l);
  put(weights_, t, first_row, part.first, n, scratch.s, scratch);
}

template <class T>
void Matrices<T>::write_scores(TileState<T>& state, BlockScratch<T>& scratch, int64_t first_row, int32_t block) const {
  const RowTile& t = state.tile;
  const Entry& e = b_.entries[size_t(t.batch)];
  const KeyRange columns = columns_of_block(e, block);
  const int32_t first = std::max(columns.first, 0), last = std::min(columns.last, e.keys), n = last - first;
  const BlockRows<T> keys = steps_.fetch(b_, b_.key, t.batch, t.key_head, b_.head_dim, first, n, scratch.keys);
  steps_.prefill.scores(state.q, t.lanes, keys.first, keys.stride, n, b_.head_dim, scratch.s);
  if (raw_) put(raw_, t, first_row, first, n, scratch.s, scratch);
  if (!modified_ && !masked_) return;
  if (!b_.scores.empty()) steps_.modify(b_, state, first, n, scratch);
  if (modified_) put(modified_, t, first_row, first, n, scratch.s, scratch);
  if (!masked_) return;
  const Part part = look(b_, t, columns, scratch.words);
  if (part.cover == Cover::kHidden) return;
  T* s = scratch.s + int64_t{part.first - first} * t.lanes;
  std::fill_n(scratch.before, t.lanes, kMinusInf<T>);
  if (part.cover == Cover::kPartial)
    steps_.prefill.raise_max(s, part.keys(), t.lanes, scratch.words, scratch.before, scratch.alpha);
  put(masked_, t, first_row, part.first, part.keys(), s, scratch);
}

template <class T>
void Matrices<T>::put(const RowsOf& to, const RowTile& t, int64_t first_row, int32_t first_column, int keys, const T* s,
                      BlockScratch<T>& scratch) const {
  T* by_row = scratch.score_copy;  // {rows, keys}
  steps_.rows.transpose(s, t.lanes, keys, t.rows, T(1), by_row, kBlock);
  T* at = static_cast<T*>(to.at(t.batch, t.head[0], first_row)) + first_column * to.column;
  steps_.rows.store(by_row, kBlock, t.rows, keys, at, to.type, to.row, to.column);
}

template <class T>
void Matrices<T>::fill(const RowsOf& to, int batch, int head, int64_t first_row, int64_t rows, T value) const {
  if (!to) return;
  for (int64_t i = first_row; i < first_row + rows; ++i) {
    T* row = static_cast<T*>(to.at(batch, head, i));
    for (int64_t j = 0; j < b_.longest_key; ++j) row[j * to.column] = value;
  }
}

template class Matrices<float>;
template class Matrices<double>;
template void gather_sums(const RowTile&, const RowsOf&, const RowsOf&, float*, float*);
template void gather_sums(const RowTile&, const RowsOf&, const RowsOf&, double*, double*);

}  // namespace qkv
