// Dense products of layers: a packed weight matrix times rows, the gradients of weights and biases.
//
// Numbers are computed in T: float for tensors of float32, float16 and bfloat16 (widened when they are read, rounded once when
// the result is stored), double for float64. How work is cut depends on shapes only, and every sum has one order, so results
// have the same bits for any number of threads, and a row of a product for any number of rows beside it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/workspace.h"
#include "kernels/product.h"
#include "nn/into.h"
#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv::nn {

/// A matrix B {rows, columns} in the order in which products read it. Rows are summed over, columns are those of the result.
/// Owns its memory; packing a matrix of no greater size again allocates nothing.
template <class T> class PackedMatrix {
 public:
  /// Copies `matrix` {rows, columns}, of any strides: a view of a weight matrix {out, in} with its axes exchanged packs W^T, for
  /// y = x W^T; the matrix itself serves dx = dy W. T = float takes float32, float16 and bfloat16, T = double float64.
  /// Throws ShapeError, DtypeError. O(rows * columns), one read and one write.
  void pack(View<const void> matrix, const Call& call = {});

  int64_t rows() const { return rows_; }
  int64_t columns() const { return panels_.columns; }
  const T* data() const { return data_; }  ///< see kernels/product.h
  const kernels::Panels& panels() const { return panels_; }
  const kernels::ProductKernels<T>& kernels() const { return *kernels_; }  ///< for which it is packed

 private:
  AlignedBuffer memory_;
  T* data_ = nullptr;
  int64_t rows_ = 0;
  kernels::Panels panels_;
  const kernels::ProductKernels<T>* kernels_ = &kernels::product_kernels<T>();
};

/// What is added to a product.
struct Epilogue {
  View<const void> bias{};  ///< {columns}, or absent; of the type of x, y or T
  Into into = Into::kWrite;
};

/// y[m][n] = sum over k of x[m][k] * B[k][n] (+ bias[n]) (+ y[m][n])
/// x {M, B.rows()}, y {M, B.columns()}: contiguous columns, any distance between rows. y overlaps nothing that is read.
/// An element is one chain of fused multiply-adds over k in ascending order from +0 in T, then bias, then the old y. On processors
/// without such an operation every product is rounded first.
/// With no rows to sum over, y is the bias. Throws ShapeError, DtypeError, Cancelled. O(M * rows * columns).
template <class T>
void product(View<const void> x, const PackedMatrix<T>& b, View<void> y, const Epilogue& epilogue = {},
             const Call& call = {});

/// dw[n][k] (+)= sum over m of dy[m][n] * x[m][k]: the gradient of a weight matrix {N, K} in y = x W^T.
/// dy {M, N} and x {M, K}: contiguous columns, both float64 or neither; dw {N, K}: contiguous columns, float32 or float64.
/// Chunks of 256 rows are summed from +0 like an element of product(), and added to dw in their order. So parts of a batch
/// give the bits of the whole, where they begin at multiples of 256 rows.
/// Throws ShapeError, DtypeError, Cancelled. O(M * N * K).
void product_transposed(View<const void> dy, View<const void> x, View<void> dw, Into into, const Call& call = {});

/// db[n] (+)= sum over m of dy[m][n]: the gradient of a bias. dy {M, N}: contiguous columns; db {N}: float32 or float64, any
/// stride. Chunks of 256 rows as in product_transposed(). Throws ShapeError, DtypeError, Cancelled. O(M * N).
void column_sums(View<const void> dy, View<void> db, Into into, const Call& call = {});

}  // namespace qkv::nn
