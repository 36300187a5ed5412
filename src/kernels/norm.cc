// See norm.h. Some rows go together, so that their sums do not wait for each other; a row alone takes the same steps.
#include "kernels/norm.h"

#include <cmath>

#include "core/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/span-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr int kForward = 4, kBackward = kManyRegisters ? 4 : 2;  // rows that go together

/// The sums of R rows of f(r, c, lanes), a vector of numbers that are 0 behind the end.
template <int R, class T, class F> HWY_INLINE void SumRows(int64_t dim, T (&sums)[R], F f) {
  const Full<T> d;
  hn::Vec<Full<T>> sum[R];
  for (int r = 0; r < R; ++r) sum[r] = hn::Zero(d);
  ForVectors(d, dim, [&](int64_t c, auto lanes) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[r] = hn::Add(sum[r], f(r, c, lanes));
  });
  for (int r = 0; r < R; ++r) sums[r] = Total(d, sum[r]);
}

/// What is subtracted from rows before they are scaled: their means in two parts, the second of which is what rounding took from
/// the first. So a mean that is far larger than the deviation costs nothing.
template <int R, class T> struct Centres {
  T first[R] = {}, rest[R] = {};
};

template <int R, class T>
HWY_INLINE void Moments(const T* x, int64_t stride, int64_t dim, Centres<R, T>& at, T (&var)[R]) {
  const Full<T> d;
  const T count = T(dim);
  SumRows<R>(dim, at.first, [&](int r, int64_t c, auto lanes) { return lanes.load(d, x + r * stride + c); });
  for (int r = 0; r < R; ++r) at.first[r] /= count;
  hn::Vec<Full<T>> centre[R], sum[R], squares[R];
  for (int r = 0; r < R; ++r) centre[r] = hn::Set(d, at.first[r]), sum[r] = squares[r] = hn::Zero(d);
  ForVectors(d, dim, [&](int64_t c, auto lanes) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const auto difference = lanes.only(d, hn::Sub(lanes.load(d, x + r * stride + c), centre[r]));
      sum[r] = hn::Add(sum[r], difference);
      squares[r] = hn::MulAdd(difference, difference, squares[r]);
    }
  });
  for (int r = 0; r < R; ++r) {
    at.rest[r] = Total(d, sum[r]) / count;
    const T variance = Total(d, squares[r]) / count - at.rest[r] * at.rest[r];
    var[r] = variance < 0 ? T(0) : variance;
  }
}

template <int R, bool kRms, class T> HWY_INLINE void ForwardRows(const NormForward<T>& f, int row) {
  const Full<T> d;
  const T* x = f.x + row * f.x_stride;
  T* y = f.y + row * f.y_stride;
  Centres<R, T> at;
  T var[R];
  if constexpr (kRms) {
    SumRows<R>(f.dim, var, [&](int r, int64_t c, auto lanes) {
      const auto v = lanes.load(d, x + r * f.x_stride + c);
      return hn::Mul(v, v);
    });
    for (int r = 0; r < R; ++r) var[r] /= T(f.dim);
  } else {
    Moments<R>(x, f.x_stride, f.dim, at, var);
  }
  hn::Vec<Full<T>> first[R], rest[R], scale[R];
  for (int r = 0; r < R; ++r) {
    const T rstd = T(1) / std::sqrt(var[r] + f.epsilon);
    if (f.mean) f.mean[row + r] = at.first[r] + at.rest[r];
    if (f.rstd) f.rstd[row + r] = rstd;
    first[r] = hn::Set(d, at.first[r]), rest[r] = hn::Set(d, -at.rest[r] * rstd), scale[r] = hn::Set(d, rstd);
  }
  ForVectors(d, f.dim, [&](int64_t c, auto lanes) {
    const auto gain = f.gain ? lanes.load(d, f.gain + c) : hn::Set(d, T(1));
    const auto bias = f.bias ? lanes.load(d, f.bias + c) : hn::Zero(d);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const auto v = lanes.load(d, x + r * f.x_stride + c);
      const auto normal = kRms ? hn::Mul(v, scale[r]) : hn::MulAdd(hn::Sub(v, first[r]), scale[r], rest[r]);
      lanes.store(d, hn::MulAdd(normal, gain, bias), y + r * f.y_stride + c);
    }
  });
}

/// With n = (x - mean) rstd and g = dy gain, averages over the row:
///   dx = rstd (g - average(g) - n average(g n)),   dgain += dy n,   dbias += dy;   RMS norm has no average(g).
template <int R, bool kRms, class T> HWY_INLINE void BackwardRows(const NormBackward<T>& b, int row) {
  const Full<T> d;
  using V = hn::Vec<Full<T>>;
  const T *x = b.x + row * b.x_stride, *dy = b.dy + row * b.dy_stride;
  V mean[R], rstd[R], sum[R], product[R];
  for (int r = 0; r < R; ++r) {
    mean[r] = hn::Set(d, kRms ? T(0) : b.mean[row + r]), rstd[r] = hn::Set(d, b.rstd[row + r]);
    sum[r] = product[r] = hn::Zero(d);
  }
  const auto normal = [&](int r, int64_t c, auto lanes) {
    const V v = lanes.load(d, x + r * b.x_stride + c);
    return hn::Mul(kRms ? v : hn::Sub(v, mean[r]), rstd[r]);
  };
  ForVectors(d, b.dim, [&](int64_t c, auto lanes) {
    const V gain = b.gain ? lanes.load(d, b.gain + c) : hn::Set(d, T(1));
    V dgain = b.dgain ? lanes.load(d, b.dgain + c) : hn::Zero(d), dbias = b.dbias ? lanes.load(d, b.dbias + c) : dgain;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V of_y = lanes.load(d, dy + r * b.dy_stride + c), n = normal(r, c, lanes), g = hn::Mul(of_y, gain);
      if constexpr (!kRms) sum[r] = hn::Add(sum[r], g);
      product[r] = hn::MulAdd(g, n, product[r]);
      dgain = hn::MulAdd(of_y, n, dgain);
      dbias = hn::Add(dbias, of_y);
    }
    if (b.dgain) lanes.store(d, dgain, b.dgain + c);
    if (b.dbias) lanes.store(d, dbias, b.dbias + c);
  });
  if (!b.dx) return;
  for (int r = 0; r < R; ++r) {
    sum[r] = hn::Set(d, Total(d, sum[r]) / T(b.dim));
    product[r] = hn::Set(d, Total(d, product[r]) / T(b.dim));
  }
  T* dx = b.dx + row * b.dx_stride;
  ForVectors(d, b.dim, [&](int64_t c, auto lanes) {
    const V gain = b.gain ? lanes.load(d, b.gain + c) : hn::Set(d, T(1));
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V of_y = lanes.load(d, dy + r * b.dy_stride + c);
      V g = kRms ? hn::Mul(of_y, gain) : hn::MulSub(of_y, gain, sum[r]);
      g = hn::NegMulAdd(normal(r, c, lanes), product[r], g);
      T* to = dx + r * b.dx_stride + c;
      lanes.store(d, b.add ? hn::MulAdd(g, rstd[r], lanes.load(d, to)) : hn::Mul(g, rstd[r]), to);
    }
  });
}

template <bool kRms, class T> void Forward(const NormForward<T>& f) {
  int r = 0;
  for (; r + kForward <= f.rows; r += kForward) ForwardRows<kForward, kRms>(f, r);
  for (; r < f.rows; ++r) ForwardRows<1, kRms>(f, r);
}

template <bool kRms, class T> void Backward(const NormBackward<T>& b) {
  int r = 0;
  for (; r + kBackward <= b.rows; r += kBackward) BackwardRows<kBackward, kRms>(b, r);
  for (; r < b.rows; ++r) BackwardRows<1, kRms>(b, r);
}

template <class T> const NormKernels<T>* Table() {
  static constexpr NormKernels<T> kTable{Forward<false, T>, Forward<true, T>, Backward<false, T>, Backward<true, T>};
  return &kTable;
}

}  // namespace

const NormKernels<float>* NormFloat() { return Table<float>(); }
const NormKernels<double>* NormDouble() { return Table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(NormFloat);
HWY_EXPORT(NormDouble);
template <> const NormKernels<float>& norm_kernels<float>() { return *HWY_DYNAMIC_DISPATCH(NormFloat)(); }
template <> const NormKernels<double>& norm_kernels<double>() { return *HWY_DYNAMIC_DISPATCH(NormDouble)(); }
}  // namespace qkv::kernels
#endif
