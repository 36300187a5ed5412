// One step of an optimiser along contiguous parameters.
#pragma once
#include <cstdint>

namespace qkv::kernels {

/// Factors of a step, made in double and rounded once.
template <class T> struct SgdFactors {
  T gradient, rate, decay, momentum, undamped;
  bool first, nesterov;
};
template <class T> struct AdamFactors {
  T gradient, decay, shrink;                 ///< g = gradient * g + decay * p;  p *= shrink
  T rest1, beta2, rest2;                     ///< m += rest1 (g - m);  v = beta2 v + rest2 g^2
  T step_size, inverse_correction, epsilon;  ///< p -= step_size m / (sqrt(v) * inverse_correction + epsilon)
};

template <class T> struct OptimizerKernels {
  /// velocity may be null where momentum is 0.
  void (*sgd)(T* parameters, const T* gradient, T* velocity, int64_t n, const SgdFactors<T>&);
  void (*adam)(T* parameters, const T* gradient, T* m, T* v, int64_t n, const AdamFactors<T>&);
};

/// The functions for the best instruction set of this machine.
template <class T> const OptimizerKernels<T>& optimizer_kernels();

}  // namespace qkv::kernels
