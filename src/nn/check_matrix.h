// Checks of the matrices that layers get: they throw with the function, the argument, what was expected and what came.
#pragma once
#include <cstdint>

#include "core/format.h"

namespace qkv::nn {

/// `v` has this shape and lies where its elements may lie.
inline void check_shape(const char* function, const char* name, View<const void> v, const Layout& expected) {
  if (v.rank != expected.rank || v.shape != expected.shape)
    shape_error("{}: {} has shape {}, expected {}; reshape it, or pass the tensor that belongs here", function, name, v,
                expected);
  if (v.size() == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(v.data);
  if (!v.data) shape_error("{}: {} has shape {} but no data; pass a pointer", function, name, v);
  if (address % size_of(v.dtype) != 0)
    shape_error("{}: {} is not aligned to its elements of {} bytes; copy it", function, name, size_of(v.dtype));
}

/// Elements of a row lie side by side.
inline void check_contiguous_columns(const char* function, const char* name, View<const void> v) {
  if (v.rank == 2 && v.shape[1] > 1 && v.size() > 0 && v.strides[1] != 1)
    shape_error("{}: {} has a step of {} between columns, expected 1; copy it into rows", function, name, v.strides[1]);
}

/// float64 for double, the three narrower floating types for float.
template <class T> void check_computes_in(const char* function, const char* name, View<const void> v) {
  if constexpr (sizeof(T) == 8) {
    if (v.dtype != DType::kFloat64)
      dtype_error("{}: {} has type {}, expected float64 as the rest; convert it", function, name, v.dtype);
  } else if (!is_floating(v.dtype) || v.dtype == DType::kFloat64) {
    dtype_error("{}: {} has type {}, expected float32, float16 or bfloat16; convert it", function, name, v.dtype);
  }
}

/// float32 or float64.
inline void check_gradient_type(const char* function, const char* name, View<const void> v) {
  if (v.dtype != DType::kFloat32 && v.dtype != DType::kFloat64)
    dtype_error("{}: {} has type {}, expected float32 or float64: gradients are sums; allocate it so", function, name,
                v.dtype);
}

}  // namespace qkv::nn
