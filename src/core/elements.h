// Lines of elements of any floating type, read into and written from float or double with one rounding.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "qkv/view.h"

namespace qkv {

/// To float, so that rounding that to 16 bits gives what one rounding of the double would: an inexact result ends in an odd
/// bit ("round to odd", Boldo and Melquiond 2008).
inline float round_to_odd(double value) {
  const float near = static_cast<float>(value);
  if (double(near) == value || value != value || std::bit_cast<uint32_t>(near) % 2 != 0) return near;
  const float infinity = std::numeric_limits<float>::infinity();
  return std::nextafter(near, value > double(near) ? infinity : -infinity);
}

template <class To, class From> To rounded(From value) {
  constexpr bool kTwoSteps = std::is_same_v<From, double> && sizeof(To) == 2;
  if constexpr (kTwoSteps) return To(round_to_odd(value));
  else return static_cast<To>(value);
}

/// Calls f with a null pointer to the element type. The caller has checked that it is one of the four floating types.
template <class F> void with_floating(DType type, F&& f) {
  switch (type) {
    case DType::kFloat64: return f(static_cast<double*>(nullptr));
    case DType::kFloat16: return f(static_cast<float16*>(nullptr));
    case DType::kBFloat16: return f(static_cast<bfloat16*>(nullptr));
    default: return f(static_cast<float*>(nullptr));
  }
}

/// Elements at, at + stride, ... (n of them) of the tensor's memory.
template <class T> void load(View<const void> from, int64_t at, int64_t stride, int64_t n, T* to) {
  with_floating(from.dtype, [&]<class E>(E*) {
    const E* first = static_cast<const E*>(from.data) + at;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(first[i * stride]);
  });
}

template <class T> void store(View<void> to, int64_t at, int64_t stride, int64_t n, const T* from) {
  with_floating(to.dtype, [&]<class E>(E*) {
    E* first = static_cast<E*>(to.data) + at;
    for (int64_t i = 0; i < n; ++i) first[i * stride] = rounded<E>(from[i]);
  });
}

}  // namespace qkv
