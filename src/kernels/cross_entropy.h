// Softmax cross-entropy of one row of logits.
#pragma once
#include <cstdint>

namespace qkv::kernels {

/// What is kept of a row: its maximum m, and the sum of exp(x - m). NaN where the row has no softmax: it has a NaN, +inf, or nothing
/// but -inf.
template <class T> struct RowSoftmax {
  T max;
  double sum;
};

template <class T> struct CrossEntropyKernels {
  /// Where `exponentials` {n} is not null, exp(x - m) is written there; it may be x. Sums are made in T over 1024 numbers, in double
  /// over those.
  RowSoftmax<T> (*softmax)(const T* x, int64_t n, T* exponentials);
  /// The sum of the logits, in double over 1024 of them.
  double (*sum)(const T* x, int64_t n);
  /// d = e factor - rest, of the exponentials of softmax().
  void (*gradient)(const T* exponentials, T factor, T rest, int64_t n, T* d);
  /// d = exp(x - max) factor - rest, of logits.
  void (*gradient_of_logits)(const T* x, T max, T factor, T rest, int64_t n, T* d);
};

/// The functions for the best instruction set of this machine.
template <class T> const CrossEntropyKernels<T>& cross_entropy_kernels();

}  // namespace qkv::kernels
