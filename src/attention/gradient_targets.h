// The views of Upstream and Gradients, checked, and how rows get into them.
#pragma once
#include <cstdint>
#include <span>

#include "attention/bind.h"
#include "kernels/kernels.h"
#include "qkv/backward.h"

namespace qkv {

/// Upstream, checked: lse or both sums are there, out and dout are.
struct Given {
  Given(const Bound&, const Upstream&, const char* function);
  RowsOf out, dout, lse, dlse, row_max, row_sum;
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
