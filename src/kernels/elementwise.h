// Sums, products and reductions of single numbers along contiguous arrays, and what dropout keeps.
#pragma once
#include <cstdint>

namespace qkv::kernels {

template <class T> struct ElementwiseKernels {
  void (*add)(const T* x, const T* y, int64_t n, T* out);       ///< x + y
  void (*multiply)(const T* x, const T* y, int64_t n, T* out);  ///< x y
  void (*scale)(const T* x, T factor, int64_t n, T* out);       ///< x factor
  /// x factor where bit c % 64 of keep[c / 64] is set, else +0.
  void (*drop)(const T* x, const uint64_t* keep, T factor, int64_t n, T* out);
  /// to[c] += x[c], exactly widened.
  void (*add_wide)(const T* x, int64_t n, double* to);

  /// Sums in double, lane by lane.
  double (*sum_of_squares)(const T* x, int64_t n);
  double (*squared_difference)(const T* x, const T* y, int64_t n);          ///< sum of (x - y)^2
  double (*absolute_difference)(const T* x, const T* y, int64_t n);         ///< sum of |x - y|
  void (*difference)(const T* x, const T* y, T factor, int64_t n, T* out);  ///< (x - y) factor
  void (*sign)(const T* x, const T* y, T factor, int64_t n, T* out);  ///< factor with the sign of x - y; 0 where equal
};

/// The functions for the best instruction set of this machine.
template <class T> const ElementwiseKernels<T>& elementwise_kernels();

}  // namespace qkv::kernels
