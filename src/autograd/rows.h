// Tensors seen as matrices of rows.
#pragma once
#include "core/contiguous.h"
#include "core/format.h"
#include "qkv/autograd.h"

namespace qkv::nn {

/// {..., columns} as {rows, columns}. Throws ShapeError where it is not contiguous.
inline Layout matrix_layout(const char* function, const Layout& x) {
  if (!is_contiguous(x)) shape_error("{}: x {} is not contiguous; copy it", function, x);
  const int64_t columns = x.rank == 0 ? 0 : x.shape[size_t(x.rank) - 1];
  const int64_t sizes[] = {columns == 0 ? 0 : x.size() / columns, columns};
  return Layout(sizes);
}

inline View<const void> rows(const View<const void>& v, const Layout& matrix) { return {v.data, v.dtype, matrix}; }
inline View<void> rows(const View<void>& v, const Layout& matrix) { return {v.data, v.dtype, matrix}; }
/// Of a sink or gradient that may be absent.
inline View<void> rows_if(const View<void>& v, const Layout& matrix) { return v ? rows(v, matrix) : v; }

/// The type in which sums over elements of this type are kept.
inline DType sum_type(DType type) { return type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

}  // namespace qkv::nn
