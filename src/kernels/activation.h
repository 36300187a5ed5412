// Functions of single numbers and their derivatives, along contiguous arrays. Any of the outputs may lie on an input.
#pragma once
#include <cstdint>

#include "qkv/activation.h"

namespace qkv::kernels {

using Function = nn::Activation;
inline constexpr int kFunctions = 4;

/// Of one function f and the arithmetic type T.
template <class T> struct ActivationKernels {
  /// y = f(x)
  void (*value)(const T* x, int64_t n, T* y);
  /// y = f(x), slope = f'(x)
  void (*value_and_slope)(const T* x, int64_t n, T* y, T* slope);
  /// dx = dy f'(x)
  void (*gradient)(const T* x, const T* dy, int64_t n, T* dx);
  /// y = f(a) b
  void (*gated)(const T* a, const T* b, int64_t n, T* y);
  /// da = dy b f'(a), db = dy f(a)
  void (*gated_gradient)(const T* a, const T* b, const T* dy, int64_t n, T* da, T* db);
};

/// The functions for the best instruction set of this machine.
template <class T> const ActivationKernels<T>& activation_kernels(Function);

}  // namespace qkv::kernels
