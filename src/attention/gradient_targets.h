// The views of Upstream and Gradients, checked, and how rows get into them.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "attention/tile_state.h"
#include "qkv/backward.h"

namespace qkv {

/// Upstream, checked: lse or both sums are there, out and dout are.
struct Given {
  Given(const Bound&, const Upstream&, const char* function);
  RowsOf out, dout, lse, dlse, row_max, row_sum;

  /// m and l of w = exp(s - m) / l, of a row of one head. Of lse alone where there is no more. l is 0 where nothing is seen.
  template <class T> std::pair<T, T> sums(int batch, int head, int64_t row) const {
    const auto at = [&](const RowsOf& x) { return *static_cast<const T*>(x.at(batch, head, row)); };
    if (row_max) return {at(row_max), at(row_sum)};
    const T m = at(lse);
    return {m, m == -std::numeric_limits<T>::infinity() ? T(0) : T(1)};
  }
  /// delta[i] = dx[i] . x[i] - dlse of the n rows from `row` on: x, dx {n, value_dim} are out and dout, as fetched. Of a row that
  /// sees nothing the product is 0, whatever dout holds there.
  template <class T>
  void deltas(int batch, int head, int64_t row, BlockRows<T> x, BlockRows<T> dx, int n, int value_dim, T* delta) const;
};

/// A gradient by a tensor that a step reads.
struct ParameterTarget {
  size_t step = 0, tensor = 0;  ///< the n-th tensor of the n-th step
  View<void> view{};
  bool is_matrix =
      false;  ///< the step adds it to the scores, element by element: nothing is summed but over axes of size 1
};

/// Gradients, checked.
struct GradientTargets {
  GradientTargets(const Bound&, const Gradients&, CallArena&);
  RowsOf dquery, dkey, dvalue;
  View<void> dsinks{};
  std::span<const ParameterTarget> parameters;
  bool add = false;

  bool anything() const { return dquery || dkey || dvalue || dsinks || !parameters.empty(); }
};

/// Writes rows {n, width} at `first` of a tensor like query or key, or adds them to what is there. `scratch` {n, width}.
template <class T>
void put_rows(const kernels::RowKernels<T>&, const RowsOf& to, int batch, int head, int64_t first, int n, int width,
              const T* rows, int64_t stride, bool add, T* scratch);

}  // namespace qkv
