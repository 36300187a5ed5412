// Tensors {Hq} of one number a head.
#pragma once
#include "core/format.h"
#include "qkv/attention.h"

namespace qkv::policies {

inline constexpr int kMostRows = 64;  ///< of a tile, padding included

/// numbers[r] of row r, 0 in the padding.  numbers {kMostRows}
template <class T> void numbers_of_rows(const Parameter& of_heads, const Sites& t, T* numbers) {
  for (int r = 0; r < kMostRows; ++r) numbers[r] = r < t.rows ? of_heads.get<T>(t.head[r]) : T(0);
}

/// Adds sums[r] to the number of the head of row r, in the order of the rows.
template <class T> void add_to_heads(const Sites& t, const T* sums, double* of_heads) {
  for (int r = 0; r < t.rows; ++r) of_heads[t.head[r]] += double(sums[r]);
}

/// A tensor among Inputs::parameters, which nobody has looked at yet.
inline void expect_number_a_head(const Inputs& in, std::string_view name) {
  const View<const void> v = find_tensor(in, name);
  if (v.dtype != DType::kFloat32 && v.dtype != DType::kFloat64)
    dtype_error("{}: the tensor has type {}, expected float32 or float64; convert it", name, qkv::name(v.dtype));
  if (v.rank != 1 || v.shape[0] != in.query.shape[1])
    shape_error("{}: the tensor has shape {}, expected one number a query head: {{{}}}", name, shape_text(v),
                in.query.shape[1]);
}

}  // namespace qkv::policies
