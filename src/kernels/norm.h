// Layer norm and RMS norm of rows, with their gradients. Each row by itself: its numbers do not depend on what is beside it.
#pragma once
#include <cstdint>

namespace qkv::kernels {

/// Rows of `dim` contiguous numbers. gain and bias {dim} may be null: 1 and 0. mean and rstd {rows} are written where they are not null;
/// RMS norm has no mean.
template <class T> struct NormForward {
  const T* x;
  int64_t x_stride;
  T* y;
  int64_t y_stride;
  int rows;
  int64_t dim;
  const T *gain, *bias;
  T epsilon;
  T *mean, *rstd;
};

/// dx may be null, or lie on dy. dgain and dbias {dim}, which may be null, are added to.
template <class T> struct NormBackward {
  const T* x;
  int64_t x_stride;
  const T* dy;
  int64_t dy_stride;
  T* dx;
  int64_t dx_stride;
  bool add;  ///< dx is added to
  int rows;
  int64_t dim;
  const T *gain, *mean, *rstd;
  T *dgain, *dbias;
};

template <class T> struct NormKernels {
  void (*layer_norm)(const NormForward<T>&);
  void (*rms_norm)(const NormForward<T>&);
  void (*layer_norm_backward)(const NormBackward<T>&);
  void (*rms_norm_backward)(const NormBackward<T>&);
};

/// The functions for the best instruction set of this machine.
template <class T> const NormKernels<T>& norm_kernels();

}  // namespace qkv::kernels
