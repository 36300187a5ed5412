// A work item of observe() owns its columns, so these write where the caller wants it and have nothing to join.
#include "qkv/observers.h"

#include <algorithm>
#include <bit>

#include "attention/check.h"
#include "core/ceil_div.h"
#include "core/format.h"

namespace qkv {
namespace {

template <class T> void clear(View<T> v) {
  for (int64_t a = 0; a < v.shape[0]; ++a)
    for (int64_t b = 0; b < v.shape[1]; ++b)
      for (int64_t c = 0; c < v.shape[2]; ++c)
        for (int64_t d = 0; d < v.shape[3]; ++d) v(a, b, c, d) = 0;
}

template <class T> void add_columns(const Tile<const T>& t, View<double> received) {
  for (int j = 0; j < t.keys; ++j) {
    double sum = 0;
    for (int r = 0; r < t.rows; ++r) sum += double(t(r, j));
    received(t.batch, t.head[0], t.column[j]) += sum;
  }
}

/// The larger number, and NaN where there is one.
template <class T> T larger(T a, T b) { return b > a || b != b ? b : a; }

/// Raises maxima and adds means, cell by cell; a tile meets few cells.
template <class T>
void add_cells(const Tile<const T>& t, View<float> largest, View<float> mean, int64_t queries, int64_t keys, int cell) {
  for (int r = 0; r < t.rows;) {
    const int row = t.row[r] / cell;
    int last_r = r + 1;
    while (last_r < t.rows && t.row[last_r] / cell == row) ++last_r;
    for (int j = 0; j < t.keys;) {
      const int column = t.column[j] / cell;
      const int last_j = std::min<int64_t>(t.keys, j + (int64_t{column} + 1) * cell - t.column[j]);
      T most = 0;
      double sum = 0;
      for (int y = j; y < last_j; ++y)
        for (int x = r; x < last_r; ++x) {
          most = larger(most, t(x, y));
          sum += double(t(x, y));
        }
      const int64_t pairs = std::min<int64_t>(cell, queries - int64_t{row} * cell) *
                            std::min<int64_t>(cell, keys - int64_t{column} * cell);
      float& top = largest(t.batch, t.head[r], row, column);
      top = larger(top, float(most));
      mean(t.batch, t.head[r], row, column) += float(sum / double(pairs));
      j = last_j;
    }
    r = last_r;
  }
}

}  // namespace

Received::Received(View<double> received) : received_(received) {
  check::data("Received", "received", received);
  if (received.rank != 3)
    shape_error("Received: received has shape {}, expected {{B, Hq, S}}; allocate it so", received);
  clear(received_);
}
void Received::begin(const Extents& w) {
  if (received_.shape[0] != w[0] || received_.shape[1] != w[1] || received_.shape[2] != w[3])
    shape_error("Received: received has shape {}, expected {{{}, {}, {}}}, one number a key; allocate it so", received_,
                w[0], w[1], w[3]);
}
std::unique_ptr<passes::Observer> Received::fork() const { return std::make_unique<Received>(*this); }
void Received::see(const Tile<const float>& t) { add_columns(t, received_); }
void Received::see(const Tile<const double>& t) { add_columns(t, received_); }
void Received::join(const passes::Observer&) {}

Pyramid::Pyramid(View<float> largest, View<float> mean, int64_t queries, int64_t keys, int cell)
    : largest_(largest), mean_(mean), queries_(queries), keys_(keys), cell_(cell) {
  if (cell < 1 || cell > kLargestCell || !std::has_single_bit(unsigned(cell)))
    option_error("Pyramid: cell is {}, expected a power of two from 1 to {}; cell_for() finds one", cell, kLargestCell);
  for (const auto& [name, view] : {std::pair{"largest", largest}, std::pair{"mean", mean}}) {
    check::data("Pyramid", name, view);
    const int64_t rows = ceil_div(queries, cell), columns = ceil_div(keys, cell);
    if (view.rank != 4 || view.shape[2] != rows || view.shape[3] != columns)
      shape_error(
          "Pyramid: {} has shape {}, expected {{B, Hq, {}, {}}} for {} queries, {} keys and cells of {}; allocate it so",
          name, view, rows, columns, queries, keys, cell);
  }
  clear(largest_);
  clear(mean_);
}
void Pyramid::begin(const Extents& w) {
  if (largest_.shape[0] != w[0] || largest_.shape[1] != w[1] || mean_.shape[0] != w[0] || mean_.shape[1] != w[1] ||
      queries_ != w[2] || keys_ != w[3])
    shape_error(
        "Pyramid: made for views {} and {}, {} queries and {} keys, but the weights are {{{}, {}, {}, {}}}; make one for each attention",
        largest_, mean_, queries_, keys_, w[0], w[1], w[2], w[3]);
}
int Pyramid::cell_for(int64_t queries, int64_t keys, int limit) {
  int cell = 1;
  while (cell < kLargestCell && ceil_div(std::max(queries, keys), cell) > limit) cell *= 2;
  return cell;
}
std::unique_ptr<passes::Observer> Pyramid::fork() const { return std::make_unique<Pyramid>(*this); }
void Pyramid::see(const Tile<const float>& t) { add_cells(t, largest_, mean_, queries_, keys_, cell_); }
void Pyramid::see(const Tile<const double>& t) { add_cells(t, largest_, mean_, queries_, keys_, cell_); }
void Pyramid::join(const passes::Observer&) {}

}  // namespace qkv
