// Rows of tensors as numbers of the type of arithmetic T: in place where they have it, else widened into scratch and rounded
// once, to nearest even, on the way back.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/ceil_div.h"
#include "core/parallel.h"
#include "core/workspace.h"
#include "kernels/kernels.h"
#include "nn/into.h"
#include "nn/parts.h"
#include "qkv/view.h"

namespace qkv::nn {

/// Rows as arrays: number c of row r is data[r * stride + c].
template <class T> struct Block {
  T* data;
  int64_t stride;
};

/// `rows` rows from `row` on, `columns` columns from `column` on. scratch {rows, columns} is used where the type is another.
template <class T>
Block<const T> read(const View<const void>& v, int64_t row, int64_t column, int rows, int64_t columns, T* scratch) {
  const void* first = at(v, row, column);
  if (v.dtype == kDType<T>) return {static_cast<const T*>(first), v.strides[0]};
  kernels::row_kernels<T>().load(first, v.dtype, v.strides[0], 1, rows, int(columns), scratch, columns);
  return {scratch, columns};
}

/// Where such rows of an output are to be written; then finish().
template <class T> Block<T> place(const View<void>& v, int64_t row, int64_t column, int64_t columns, T* scratch) {
  if (v.dtype == kDType<T>) return {static_cast<T*>(at(v, row, column)), v.strides[0]};
  return {scratch, columns};
}
template <class T>
void finish(const View<void>& v, int64_t row, int64_t column, int rows, int64_t columns, const Block<T>& written) {
  if (v.dtype == kDType<T>) return;
  kernels::row_kernels<T>().store(written.data, written.stride, rows, int(columns), at(v, row, column), v.dtype,
                                  v.strides[0], 1);
}

/// A vector of parameters as numbers of type T, in place or widened into `scratch`; null where it is absent.
template <class T> const T* widened(const View<const void>& v, T* scratch) {
  if (!v) return nullptr;
  if (v.dtype == kDType<T>) return static_cast<const T*>(v.data);
  kernels::row_kernels<T>().load(v.data, v.dtype, 0, 1, 1, int(v.size()), scratch, 0);
  return scratch;
}

/// Calls f with a null pointer to float or double.
template <class F> void with_arithmetic(DType type, const F& f) {
  if (type == DType::kFloat64) f(static_cast<double*>(nullptr));
  else f(static_cast<float*>(nullptr));
}

/// A work item should have about so many elements.
inline constexpr int64_t kElementsOfAnItem = 1 << 14;

/// How many rows go together, 0 for as many as a work item has, and how many rows of scratch they need.
struct Stretch {
  int rows = 0, scratch = 0;
};

/// Calls f(first row, rows, scratch) for stretches of rows.
template <class T, class F>
void for_rows(const Call& call, Workspace::Impl& workspace, const Layout& x, Stretch stretch, const F& f) {
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const int64_t of_an_item = round_up(ceil_div(kElementsOfAnItem, std::max<int64_t>(1, columns)), 4);
  const int64_t items = ceil_div(rows, of_an_item), step = stretch.rows == 0 ? of_an_item : stretch.rows;
  const size_t bytes = size_t(stretch.scratch) * size_t(columns) * sizeof(T);
  workspace.prepare_leases(at_once(call, items), bytes);
  parallel(call, items, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace, bytes);
    const int64_t end = std::min(rows, (item + 1) * of_an_item);
    for (int64_t r = item * of_an_item; r < end; r += step)
      f(r, int(std::min(step, end - r)), static_cast<T*>(lease.data()));
  });
}

inline constexpr int64_t kPiece = 1024;  ///< numbers of a piece, at most: scratch for one fits on the stack

/// Where operations on single numbers run along a matrix.
struct Grid {
  int64_t rows, columns;

  explicit Grid(const Layout& x) : rows(x.shape[0]), columns(x.shape[1]) {}
  /// All in one row, if in each of these tensors a row begins where the last one ends.
  template <class... Views> Grid(const Layout& x, const Views&... views) : Grid(x) {
    if (((!views || rows <= 1 || views.strides[0] == columns) && ...)) columns *= rows, rows = 1;
  }
};

/// Calls f(row, column, n) for pieces of rows that together are the whole grid.
template <class F> void for_pieces(const Call& call, Grid grid, const F& f) {
  if (grid.rows == 0 || grid.columns == 0) return;
  const int64_t pieces_of_a_row = ceil_div(grid.columns, kPiece);
  const int64_t of_an_item = ceil_div(kElementsOfAnItem, std::min(grid.columns, kPiece));
  const int64_t pieces = grid.rows * pieces_of_a_row;
  parallel(call, ceil_div(pieces, of_an_item), [&](int64_t item) {
    for (int64_t p = item * of_an_item; p < std::min(pieces, (item + 1) * of_an_item); ++p) {
      const int64_t column = p % pieces_of_a_row * kPiece;
      f(p / pieces_of_a_row, column, std::min(kPiece, grid.columns - column));
    }
  });
}

}  // namespace qkv::nn
