#include <algorithm>

#include "core/ceil_div.h"
#include "kernels/kernels.h"
#include "nn/check_matrix.h"
#include "nn/parts.h"
#include "nn/product.h"

namespace qkv::nn {
namespace {

constexpr int64_t kRowsAtOnce = 256;            // of a panel: they stay in a cache of the first level
constexpr int64_t kElementsOfAnItem = 1 << 16;  // some 20 us

/// Copies panels of a matrix to their place.
template <class T> struct Packing {
  View<const void> matrix;  // {rows, columns}
  kernels::Panels panels;
  T* data;
  const kernels::RowKernels<T>& rows = kernels::row_kernels<T>();

  /// Of every column the elements lie side by side, as {columns, rows} it is read line by line.
  bool transposed() const { return matrix.strides[0] == 1 && matrix.strides[1] != 1; }
  /// A transposed matrix of 16-bit numbers is widened first.
  size_t scratch_bytes() const {
    const bool wide = transposed() && matrix.dtype != kDType<T>;
    return wide ? size_t(3 * panels.vector * kRowsAtOnce) * sizeof(T) : 0;
  }

  void panel(int64_t p, T* wide) const {
    const int64_t first = panels.first_column(p), width = panels.first_column(p + 1) - first;
    const int columns = int(panels.columns_before(p + 1) - first);
    for (int64_t k = 0; k < matrix.shape[0]; k += kRowsAtOnce) {
      const int here = int(std::min(kRowsAtOnce, matrix.shape[0] - k));
      T* to = data + first * matrix.shape[0] + k * width;
      if (columns < width) std::fill(to, to + here * width, T(0));
      copy(at(matrix, k, first), here, columns, to, width, wide);
    }
  }

 private:
  void copy(const void* from, int depth, int columns, T* to, int64_t width, T* wide) const {
    const int64_t row_stride = matrix.strides[0], column_stride = matrix.strides[1];
    if (!transposed()) {
      rows.load(from, matrix.dtype, row_stride, column_stride, depth, columns, to, width);
    } else if (!wide) {
      rows.transpose(static_cast<const T*>(from), column_stride, columns, depth, T(1), to, width);
    } else {
      rows.load(from, matrix.dtype, column_stride, 1, columns, depth, wide, kRowsAtOnce);
      rows.transpose(wide, kRowsAtOnce, columns, depth, T(1), to, width);
    }
  }
};

}  // namespace

template <class T> void PackedMatrix<T>::pack(View<const void> matrix, const Call& call) {
  if (matrix.rank != 2)
    shape_error("PackedMatrix::pack: matrix has shape {}, expected {{rows, columns}}; reshape it", matrix);
  check_shape("PackedMatrix::pack", "matrix", matrix, matrix);
  check_computes_in<T>("PackedMatrix::pack", "matrix", matrix);
  kernels_ = &kernels::product_kernels<T>();
  rows_ = matrix.shape[0];
  panels_ = {kernels_->vector, matrix.shape[1]};
  data_ = static_cast<T*>(memory_.reserve(size_t(rows_ * panels_.padded()) * sizeof(T)));

  const Packing<T> packing{matrix, panels_, data_};
  const int64_t panels = panels_.count();
  const int64_t items = std::min(panels, ceil_div(rows_ * panels_.columns, kElementsOfAnItem));
  parallel_with_scratch(call, items, packing.scratch_bytes(), [&](int64_t item, void* scratch) {
    const Part part(panels, item, items);
    for (int64_t p = part.first; p < part.last; ++p) packing.panel(p, static_cast<T*>(scratch));
  });
}

template class PackedMatrix<float>;
template class PackedMatrix<double>;

}  // namespace qkv::nn
