#include "attention/key_block.h"

#include <algorithm>

#include "attention/dropout.h"
#include "core/bits.h"
#include "core/ceil_div.h"

namespace qkv {
namespace {

constexpr int kWords = 64;

}  // namespace

template <class T>
void KeyBlock<T>::carve(Carver& c, const Bound& b, const kernels::PrefillKernels<T>& prefill, bool with_matrix) {
  const int width = prefill.query_tile, most = int(ceil_div(kKeysOfItem, width));
  for (int n = 0; n < most; ++n) {
    KeyTile<T>& t = tiles_[n];
    t.k = c.take<T>(int64_t{b.head_dim} * width);
    t.v = c.take<T>(int64_t{b.value_dim} * width);
    t.dk = c.take<T>(int64_t{b.head_dim} * width);
    t.dv = c.take<T>(int64_t{b.value_dim} * width);
    t.ds = c.take<T>(int64_t{kRowsOfStep} * width);
    t.dmatrix = c.take<T>(with_matrix ? int64_t{kRowsOfStep} * width : 0);
    t.seen = c.take<uint64_t>(kWords);
  }
  key_rows_ = c.take<T>(int64_t{kKeysOfItem} * b.head_dim);
  value_rows_ = c.take<T>(int64_t{kKeysOfItem} * b.value_dim);
  s_ = c.take<T>(int64_t{kRowsOfStep} * width);
  before_ = c.take<T>(int64_t(b.scores.size()) * kRowsOfStep * width);
  ones_ = c.take<T>(kernels::kMaxLanes);
  words_ = c.take<uint64_t>(kernels::kKeyBlock);
  keep_ = c.take<uint64_t>(kRowsOfStep);
  kept_ = c.take<uint64_t>(int64_t{kRowsOfStep} * words_of(kKeysOfItem));
  column_ = c.take<int32_t>(kernels::kMaxLanes + 16);
  key_ = c.take<int32_t>(kernels::kMaxLanes + 16);
}

template <class T> void KeyBlock<T>::start(const Bound& b, const Steps<T>& steps, const KeyItem& item, Wanted wanted) {
  const Entry& e = b.entries[size_t(item.batch)];
  const int32_t last = std::min(item.columns.last, e.keys);
  const int width = steps.prefill.query_tile, unit = std::max(8, steps.prefill.vector);
  batch_ = item.batch;
  wanted_ = wanted;
  std::fill_n(ones_, kernels::kMaxLanes, T(1));
  count_ = 0;
  if (item.columns.first >= last) return;
  const int n = last - item.columns.first;
  keys_ = steps.fetch(b, b.key, batch_, item.key_head, b.head_dim, item.columns.first, n, key_rows_);
  const BlockRows<T> values =
      steps.fetch(b, b.value, batch_, item.key_head, b.value_dim, item.columns.first, n, value_rows_);
  keys_finite_ = steps.prefill.all_finite(keys_.first, keys_.stride, n, b.head_dim);
  for (int first = 0; first < n; first += width) {
    KeyTile<T>& t = tiles_[count_++];
    const int keys = std::min(width, n - first);
    t.columns = {item.columns.first + first, item.columns.first + first + keys};
    t.lanes = int(round_up(keys, unit));
    if (t.lanes > keys) {
      std::fill_n(t.k, int64_t{b.head_dim} * t.lanes, T(0));
      std::fill_n(t.v, int64_t{b.value_dim} * t.lanes, T(0));
    }
    steps.rows.transpose(keys_.row(first), keys_.stride, keys, b.head_dim, T(1), t.k, t.lanes);
    steps.rows.transpose(values.row(first), values.stride, keys, b.value_dim, T(1), t.v, t.lanes);
    std::fill_n(t.dk, int64_t{b.head_dim} * t.lanes, T(0));
    std::fill_n(t.dv, int64_t{b.value_dim} * t.lanes, T(0));
  }
}

/// Which rows see which keys of a tile. Fills first_row, rows, seen, hides; says whether any row sees any key.
template <class T> bool KeyBlock<T>::look_at(const Bound& b, const RowTile& rows, KeyTile<T>& t) {
  t.first_row = 0;
  t.rows = 0;
  const Part part = look(b, rows, t.columns, words_);
  if (part.cover == Cover::kHidden) return false;
  t.hides = part.cover == Cover::kPartial || part.first > t.columns.first || part.last < t.columns.last;
  t.rows = rows.rows;
  if (!t.hides) return true;
  const uint64_t all = low_bits(rows.rows);
  std::fill_n(t.seen, kWords, uint64_t{0});
  for (int j = 0; j < part.keys(); ++j)
    t.seen[part.first - t.columns.first + j] = part.cover == Cover::kPartial ? words_[j] & all : all;
  transpose_bits(t.seen);
  while (t.rows > 0 && t.seen[t.rows - 1] == 0) --t.rows;
  while (t.first_row < t.rows && t.seen[t.first_row] == 0) ++t.first_row;
  t.rows -= t.first_row;
  return t.rows > 0;
}

template <class T>
bool KeyBlock<T>::step(const Bound& b, const Steps<T>& steps, const QueryRows<T>& q,
                       std::span<const std::span<double* const>> sums) {
  bool any = false;
  for (int n = 0; n < count_; ++n) any |= look_at(b, *q.tile, tiles_[n]);
  if (!any) return false;
  // A row that is not finite may do no harm where it sees nothing, be it by a mask or by scores that overflow to -inf.
  rows_finite_ = steps.prefill.all_finite(q.query.first, q.query.stride, q.tile->rows, b.head_dim) &&
                 steps.prefill.all_finite(q.dout.first, q.dout.stride, q.tile->rows, b.value_dim);
  if (b.dropout)
    keep_of_rows(b, *q.tile, 0, q.tile->rows, {tiles_[0].columns.first, tiles_[count_ - 1].columns.last}, kept_);
  for (int n = 0; n < count_; ++n)
    if (tiles_[n].rows > 0) products(b, steps, q, tiles_[n], sums);
  return true;
}

/// Bit j says whether dropout keeps the weight of the key of lane j of the tile that begins at the n-th key of the item.
template <class T> uint64_t KeyBlock<T>::kept_lanes(int row, int n) const {
  const int words = words_of(tiles_[count_ - 1].columns.last - tiles_[0].columns.first), shift = n % 64;
  const uint64_t* kept = kept_ + row * words + n / 64;
  return shift == 0 || n / 64 + 1 == words ? kept[0] >> shift : kept[0] >> shift | kept[1] << (64 - shift);
}

template <class T> Sites KeyBlock<T>::sites(const Bound& b, const RowTile& rows, const KeyTile<T>& t) {
  const int keys = t.columns.last - t.columns.first;
  number_keys(b.entries[size_t(batch_)], t.columns.first, keys, t.lanes, column_, key_);
  const int r = t.first_row;
  return {t.rows, keys, t.lanes, 1, batch_, rows.head + r, rows.row + r, rows.query + r, column_, key_};
}

/// Takes the scores through the modifiers and keeps what each was given, where it will want to know.
template <class T> void KeyBlock<T>::modify(const Bound& b, const Sites& sites, int64_t numbers) {
  T* before = before_;
  for (const passes::Score* pass : b.scores) {
    if (pass->reads_scores()) std::copy_n(s_, numbers, before);
    before += numbers;
    pass->forward(Tile<T>{sites, s_});
  }
}

/// Takes gradients by the modified scores back through the modifiers.
template <class T>
void KeyBlock<T>::turn(const Bound& b, const Sites& sites, int64_t numbers, T* ds, T* dmatrix,
                       std::span<const std::span<double* const>> sums) {
  for (size_t n = b.scores.size(); n-- > 0;) {
    if (int(n) == wanted_.matrix) std::copy_n(ds, numbers, dmatrix);
    const bool reads = b.scores[n]->reads_scores();
    const Tile<const T> before{sites, reads ? before_ + int64_t(n) * numbers : nullptr};
    b.scores[n]->backward(before, Tile<T>{sites, ds}, sums[n]);
  }
}

template <class T>
void KeyBlock<T>::products(const Bound& b, const Steps<T>& steps, const QueryRows<T>& q, KeyTile<T>& t,
                           std::span<const std::span<double* const>> sums) {
  const int r = t.first_row, rows = t.rows, lanes = t.lanes;
  const int64_t numbers = int64_t{rows} * lanes;
  const auto& prefill = steps.prefill;
  const T* dout = q.dout.row(r);
  T* ds = t.ds + int64_t{r} * lanes;
  uint64_t* seen = t.seen + r;

  prefill.scores(t.k, lanes, q.scaled + int64_t{r} * b.head_dim, b.head_dim, rows, b.head_dim, s_);
  const Sites at = b.scores.empty() ? Sites{} : sites(b, *q.tile, t);
  if (!b.scores.empty()) modify(b, at, numbers);
  if (t.hides) kernels_.hide(s_, rows, lanes, seen);
  if (!rows_finite_ || !keys_finite_) words_of_scores(s_, 1, lanes, lanes, rows, seen);
  prefill.scores(t.v, lanes, dout, q.dout.stride, rows, b.value_dim, ds);
  if (b.dropout)
    for (int i = 0; i < rows; ++i) keep_[i] = kept_lanes(r + i, t.columns.first - tiles_[0].columns.first);
  kernels_.gradients(s_, ds, rows, lanes, q.m + r, q.share + r, q.delta + r, b.dropout ? keep_ : nullptr,
                     T(b.dropout.factor));
  const kernels::Words words = rows_finite_ ? nullptr : seen;
  if (wanted_.dvalue) prefill.accumulate(t.dv, s_, lanes, dout, q.dout.stride, rows, b.value_dim, ones_, words);
  if (!b.scores.empty()) turn(b, at, numbers, ds, t.dmatrix + int64_t{r} * lanes, sums);
  if (wanted_.dkey) prefill.accumulate(t.dk, ds, lanes, q.query.row(r), q.query.stride, rows, b.head_dim, ones_, words);
}

template <class T> void KeyBlock<T>::add_to_queries(const Bound& b, T* dq, int64_t stride) const {
  for (int n = 0; n < count_; ++n) {
    const KeyTile<T>& t = tiles_[n];
    if (t.rows == 0) continue;
    kernels_.add_rows(dq + t.first_row * stride, stride, t.ds + int64_t{t.first_row} * t.lanes, t.lanes, t.rows,
                      keys_.row(t.columns.first - tiles_[0].columns.first), keys_.stride,
                      t.columns.last - t.columns.first, b.head_dim, keys_finite_ ? nullptr : t.seen + t.first_row);
  }
}

template class KeyBlock<float>;
template class KeyBlock<double>;

}  // namespace qkv
