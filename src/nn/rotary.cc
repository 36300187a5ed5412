// Drivers of rotary positions and of the tables that are made of the same angles.
#include "kernels/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/ceil_div.h"
#include "core/elements.h"
#include "core/parallel.h"
#include "core/workspace.h"
#include "kernels/kernels.h"
#include "nn/arguments.h"
#include "nn/row_positions.h"

namespace qkv {
namespace {

constexpr int64_t kRowsOfAnItem = 32;  // their angles are made once and serve all heads from the cache

/// What one call is about, after its checks.
struct Turn {
  const Rotary& rotary;
  View<const void> x;
  const RowPositions& positions;
  View<void> y;
  double direction;  // 1, or -1 to turn back
};

/// Elements `from` to D of a row, bit by bit.
void copy_rest(const Turn& t, int64_t x_at, int64_t y_at, int64_t from) {
  const int64_t bytes = int64_t(size_of(t.x.dtype)), n = t.x.shape[3] - from;
  const int64_t x_step = t.x.strides[3], y_step = t.y.strides[3];
  const auto* src = static_cast<const std::byte*>(t.x.data) + (x_at + from * x_step) * bytes;
  auto* dst = static_cast<std::byte*>(t.y.data) + (y_at + from * y_step) * bytes;
  if (src == dst || n == 0) return;
  if (x_step == 1 && y_step == 1) {
    std::memcpy(dst, src, size_t(n * bytes));
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(dst + i * y_step * bytes, src + i * x_step * bytes, size_t(bytes));
}

template <class T> void turn_row(const Rotary& rotary, const T* x, const T* cosine, const T* sine, T* y) {
  const int64_t pairs = rotary.dim() / 2;
  if (rotary.pairs() == RotaryPairs::kHalves)
    kernels::rotary_kernels<T>().rotate_halves(x, cosine, sine, pairs, pairs, y);
  else kernels::rotary_kernels<T>().rotate_neighbours(x, cosine, sine, pairs, y);
}

/// Rows [first, last) of entry b, all heads. T: the type of the arithmetic.
template <class T> void turn_rows(const Turn& t, int64_t b, int64_t first, int64_t last, T* scratch) {
  const int64_t dim = t.rotary.dim(), pairs = dim / 2;
  T* const cosine = scratch;
  T* const sine = cosine + (last - first) * pairs;
  T* const row = sine + (last - first) * pairs;
  for (int64_t l = first; l < last; ++l) {
    // cos(-a) = cos a and sin(-a) = -sin a to the bit.
    kernels::rotary_kernels<T>().angles(
        t.rotary.frequencies().data(), pairs, t.direction * double(position_of(t.positions, b, l)),
        t.rotary.attention_factor(), cosine + (l - first) * pairs, sine + (l - first) * pairs);
  }
  const auto& rows = kernels::row_kernels<T>();
  const bool in_place = t.x.dtype == kDType<T> && t.x.strides[3] == 1 && t.y.strides[3] == 1;
  for (int64_t h = 0; h < t.x.shape[1]; ++h) {
    for (int64_t l = first; l < last; ++l) {
      const int64_t x_at = t.x.offset(b, h, l), y_at = t.y.offset(b, h, l), n = (l - first) * pairs;
      copy_rest(t, x_at, y_at, dim);
      if (in_place) {
        turn_row(t.rotary, static_cast<const T*>(t.x.data) + x_at, cosine + n, sine + n,
                 static_cast<T*>(t.y.data) + y_at);
        continue;
      }
      const auto bytes = int64_t(size_of(t.x.dtype));
      rows.load(static_cast<const std::byte*>(t.x.data) + x_at * bytes, t.x.dtype, 0, t.x.strides[3], 1, int(dim), row,
                dim);
      turn_row(t.rotary, row, cosine + n, sine + n, row);
      rows.store(row, dim, 1, int(dim), static_cast<std::byte*>(t.y.data) + y_at * bytes, t.y.dtype, 0, t.y.strides[3]);
    }
  }
}

template <class T> void turn_all(const Turn& t, const Call& call) {
  const int64_t length = t.x.shape[2], tiles = ceil_div(length, kRowsOfAnItem);
  const int64_t rows = std::min(length, kRowsOfAnItem);
  WorkspaceOf workspace(call);
  parallel(call, t.x.shape[0] * tiles, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace.impl(), size_t((rows + 1) * t.rotary.dim()) * sizeof(T));
    const int64_t first = item % tiles * kRowsOfAnItem;
    turn_rows(t, item / tiles, first, std::min(length, first + kRowsOfAnItem), static_cast<T*>(lease.data()));
  });
}

void turn(const char* function, const char* from, const char* to, const Turn& t, const Call& call) {
  arguments::floating(function, from, t.x);
  if (t.x.rank != 4) shape_error("{}: {} has shape {}, expected {{batch, heads, length, size}}", function, from, t.x);
  arguments::same(function, to, t.y, from, t.x);
  if (t.rotary.dim() > t.x.shape[3])
    shape_error("{}: {} has shape {} but {} elements of a row shall turn; expected a last axis of {} or more", function,
                from, t.x, t.rotary.dim(), t.rotary.dim());
  check_positions(function, t.positions, t.x.shape[0], t.x.shape[2]);
  if (t.x.size() == 0) return;
  if (t.x.dtype == DType::kFloat64) turn_all<double>(t, call);
  else turn_all<float>(t, call);
}

/// The table's {B, L, n}, where B may be left out.
struct TableShape {
  int64_t batch, length, width;
};
TableShape table_shape(const char* function, const char* name, View<const void> table, const RowPositions& positions) {
  arguments::floating(function, name, table);
  if (table.rank != 2 && table.rank != 3)
    shape_error("{}: {} has shape {}, expected {{length, width}} or {{batch, length, width}}", function, name, table);
  const bool batched = table.rank == 3;
  const TableShape s = batched ? TableShape{table.shape[0], table.shape[1], table.shape[2]}
                               : TableShape{1, table.shape[0], table.shape[1]};
  check_positions(function, positions, s.batch, s.length);
  return s;
}
int64_t table_row(const Layout& table, int64_t b, int64_t l) {
  return table.rank == 3 ? table.offset(b, l) : table.offset(l);
}

/// f(b, l, cosine, sine) for the angles of every row, in double.
template <class F>
void each_row(const TableShape& s, std::span<const double> frequencies, double factor, const RowPositions& positions,
              const Call& call, F f) {
  const auto n = int64_t(frequencies.size()), tiles = ceil_div(s.length, kRowsOfAnItem);
  WorkspaceOf workspace(call);
  parallel(call, s.batch * tiles, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace.impl(), size_t(2 * n) * sizeof(double));
    auto* cosine = static_cast<double*>(lease.data());
    const int64_t b = item / tiles, first = item % tiles * kRowsOfAnItem;
    for (int64_t l = first; l < std::min(s.length, first + kRowsOfAnItem); ++l) {
      kernels::rotary_kernels<double>().angles(frequencies.data(), n, double(position_of(positions, b, l)), factor,
                                               cosine, cosine + n);
      f(b, l, cosine, cosine + n);
    }
  });
}

}  // namespace

void rotary_forward(const Rotary& rotary, View<const void> x, const RowPositions& positions, View<void> y,
                    const Call& call) {
  turn("rotary_forward", "x", "y", {rotary, x, positions, y, 1}, call);
}

void rotary_backward(const Rotary& rotary, View<const void> dy, const RowPositions& positions, View<void> dx,
                     const Call& call) {
  turn("rotary_backward", "dy", "dx", {rotary, dy, positions, dx, -1}, call);
}

void rotary_table(const Rotary& rotary, const RowPositions& positions, View<void> cosine, View<void> sine,
                  const Call& call) {
  const TableShape s = table_shape("rotary_table", "cosine", cosine, positions);
  arguments::same("rotary_table", "sine", sine, "cosine", cosine);
  if (s.width != rotary.dim() / 2)
    shape_error("rotary_table: cosine has shape {}, expected a last axis of {}: one number a pair", cosine,
                rotary.dim() / 2);
  const int64_t step = cosine.strides[cosine.rank - 1], sine_step = sine.strides[sine.rank - 1];
  each_row(s, rotary.frequencies(), rotary.attention_factor(), positions, call,
           [&](int64_t b, int64_t l, const double* c, const double* sn) {
             store(cosine, table_row(cosine, b, l), step, s.width, c);
             store(sine, table_row(sine, b, l), sine_step, s.width, sn);
           });
}

void sinusoidal(const RowPositions& positions, View<void> table, double base, const Call& call) {
  const TableShape s = table_shape("sinusoidal", "table", table, positions);
  if (!(base >= 1) || !std::isfinite(base)) option_error("sinusoidal: base is {}, expected 1 or more", base);
  std::vector<double> frequencies;
  for (int64_t i = 0; 2 * i < s.width; ++i)
    frequencies.push_back(1 / std::pow(base, 2.0 * double(i) / double(s.width)));
  const int64_t step = table.strides[table.rank - 1];
  each_row(s, frequencies, 1, positions, call, [&](int64_t b, int64_t l, const double* cosine, const double* sine) {
    const int64_t at = table_row(table, b, l);
    store(table, at, 2 * step, (s.width + 1) / 2, sine);
    store(table, at + step, 2 * step, s.width / 2, cosine);
  });
}

}  // namespace qkv
