// Rotary positions: angles, and the rotation of one row by them. T is float (also for the 16-bit storage types) or double.
#pragma once
#include <cstdint>

namespace qkv::kernels {

template <class T> struct RotaryKernels {
  /// cosine[i] = factor * cos(position * frequency[i]), sine likewise, of n angles. Angle, functions and product in double
  /// whatever T is, rounded to T once. |position * frequency| at most kMostAngle: errors stay below 4e-16 * factor, plus that of
  /// the angle's own rounding.
  void (*angles)(const double* frequency, int64_t n, double position, double factor, T* cosine, T* sine);
  /// y[i]     = x[i] * cosine[i] - x[far + i] * sine[i]
  /// y[far+i] = x[far + i] * cosine[i] + x[i] * sine[i]      for i < n.  y may be x.
  void (*rotate_halves)(const T* x, const T* cosine, const T* sine, int64_t n, int64_t far, T* y);
  /// The same of the pairs x[2i], x[2i + 1].
  void (*rotate_neighbours)(const T* x, const T* cosine, const T* sine, int64_t n, T* y);
};

inline constexpr double kMostAngle = 0x1p31;

template <class T> const RotaryKernels<T>& rotary_kernels();

}  // namespace qkv::kernels
