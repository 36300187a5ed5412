// Dense products of matrices and sums of columns: plain functions over arrays, one set an instruction set and an arithmetic
// type T (float or double). No threads, no 16-bit types: drivers widen.
//
// Every element of a product is one chain of fused multiply-adds over the summed index, in ascending order from +0, then what
// is added to it. So its bits depend on no tile, no neighbour and no instruction set that has such an operation (AVX2, AVX3,
// NEON); SSE4 and older round the product first and give other bits, of which the same can be said among themselves.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"

namespace qkv::kernels {

/// How the columns of a packed matrix are cut: panels of three vectors, at the end one or two of two, or a single one of one
/// vector. A panel is contiguous, {depth, its columns}, and the last is padded with zeros to whole vectors.
struct Panels {
  int vector = 1;  ///< elements of a vector
  int64_t columns = 0;

  int64_t vectors() const { return ceil_div(columns, vector); }
  int64_t count() const { return wide() + ceil_div(vectors() - 3 * wide(), 2); }
  /// Vectors before panel p; count() is allowed.
  int64_t vectors_before(int64_t p) const { return p <= wide() ? 3 * p : std::min(vectors(), wide() + 2 * p); }
  int64_t first_column(int64_t p) const { return vectors_before(p) * vector; }
  /// The first column after panel p - 1, without padding.
  int64_t columns_before(int64_t p) const { return std::min(columns, first_column(p)); }
  /// Elements of all panels together.
  int64_t padded() const { return vectors() * vector; }

 private:
  int64_t wide() const { return vectors() % 3 == 1 ? std::max<int64_t>(0, vectors() / 3 - 1) : vectors() / 3; }
};

/// y[r][c] = sum over k of x[r][k] * b[k][c] (+ bias[c]) (+ y[r][c]) for the columns of panels [first, last).
template <class T> struct Product {
  const T* x = nullptr;  ///< {rows, depth}, contiguous along k; or slabs, see ProductKernels::multiply_slabs
  int64_t x_stride = 0;
  int64_t rows = 0, depth = 0;
  const T* b = nullptr;  ///< the packed matrix, panel 0, on a 64-byte line
  int64_t pitch = 0;  ///< a panel or slab that begins with column or row i lies i * pitch elements behind the first one
  Panels panels;
  int64_t first = 0, last = 0;
  const T* bias = nullptr;  ///< of the first column of panel `first`, or null
  T* y = nullptr;           ///< at that column too
  int64_t y_stride = 0;
  bool add = false;
};

template <class T> struct ProductKernels {
  const char* instruction_set;
  int vector;  ///< elements of a vector
  int slab;    ///< rows that lie together in a slab

  void (*multiply)(const Product<T>&);
  /// The same for an x that pack_slabs() gave: rows [slab * i, slab * (i + 1)) are {depth, slab} at x + i * slab * pitch.
  void (*multiply_slabs)(const Product<T>&);
  /// to[i * width * pitch + r * width + c] = from[r][i * width + c], 0 beyond the columns.   from {rows, columns}
  void (*pack_slabs)(const T* from, int64_t stride, int64_t rows, int64_t columns, int64_t width, T* to, int64_t pitch);
  /// sums[c] = from[0][c] + from[1][c] + ... in this order.
  void (*column_sums)(const T* from, int64_t stride, int64_t rows, int64_t columns, T* sums);
};

template <class T> const ProductKernels<T>& product_kernels();

}  // namespace qkv::kernels
