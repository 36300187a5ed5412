// What the backward pass does beside the products that it shares with prefill; lanes are keys. See kernels.h.
#include "core/targets.h"
#include "kernels/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr int kRows = kManyRegisters ? 6 : 4;     // of a panel of add_rows
constexpr int kVectors = kManyRegisters ? 4 : 2;  // of a panel of add_rows

template <class T> void Hide(T* s, int rows, int lanes, Words seen) {
  const Full<T> d;
  const int n = int(hn::Lanes(d));
  for (int r = 0; r < rows; ++r)
    for (int lane = 0; lane < lanes; lane += n) {
      T* at = s + int64_t{r} * lanes + lane;
      hn::StoreU(hn::IfThenElse(RowMask(d, seen[r], size_t(lane)), hn::LoadU(d, at), MinusInf(d)), d, at);
    }
}

template <bool kDrops, class T>
HWY_INLINE void GradientsOf(T* HWY_RESTRICT s, T* HWY_RESTRICT dp, int rows, int lanes, const T* m, const T* share,
                            const T* delta, Words keep, T factor) {
  const Full<T> d;
  const int n = int(hn::Lanes(d));
  const auto kept = hn::Set(d, factor);
  for (int r = 0; r < rows; ++r) {
    const auto max = FiniteMax(d, hn::Set(d, m[r])), part = hn::Set(d, share[r]), off = hn::Set(d, delta[r]);
    for (int lane = 0; lane < lanes; lane += n) {
      T* score = s + int64_t{r} * lanes + lane;
      T* gradient = dp + int64_t{r} * lanes + lane;
      const auto x = hn::LoadU(d, score);
      auto p = Flush(d, hn::Mul(Exp(d, hn::Sub(x, max)), part)), by_weight = hn::LoadU(d, gradient);
      const auto whole = p;
      if constexpr (kDrops) {
        const auto keeps = RowMask(d, keep[r], size_t(lane));
        p = hn::IfThenElseZero(keeps, hn::Mul(p, kept));
        by_weight = hn::IfThenElseZero(keeps, hn::Mul(by_weight, kept));
      }
      hn::StoreU(p, d, score);
      const auto ds = Flush(d, hn::Mul(whole, hn::Sub(by_weight, off)));
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(x, MinusInf(d)), ds), d, gradient);
    }
  }
}

template <class T>
void Gradients(T* s, T* dp, int rows, int lanes, const T* m, const T* share, const T* delta, Words keep, T factor) {
  if (keep) GradientsOf<true>(s, dp, rows, lanes, m, share, delta, keep, factor);
  else GradientsOf<false>(s, dp, rows, lanes, m, share, delta, keep, factor);
}

/// kPanel rows, nv vectors of columns; a chain of fused multiply-adds along the keys, from what is there.
template <int kPanel, int nv, class D, class T>
HWY_INLINE void AddPanel(D d, T* HWY_RESTRICT o, int64_t o_stride, const T* HWY_RESTRICT ds, int lanes,
                         const T* HWY_RESTRICT k, int64_t k_stride, int keys) {
  const int n = int(hn::Lanes(d));
  hn::Vec<D> sum[kPanel][nv];
#pragma GCC unroll 8
  for (int r = 0; r < kPanel; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < nv; ++i) sum[r][i] = hn::LoadU(d, o + r * o_stride + i * n);
  for (int j = 0; j < keys; ++j) {
    hn::Vec<D> key[nv];
#pragma GCC unroll 4
    for (int i = 0; i < nv; ++i) key[i] = hn::LoadU(d, k + j * k_stride + i * n);
#pragma GCC unroll 8
    for (int r = 0; r < kPanel; ++r) {
      const auto gradient = hn::Set(d, ds[int64_t{r} * lanes + j]);
#pragma GCC unroll 4
      for (int i = 0; i < nv; ++i) sum[r][i] = hn::MulAdd(gradient, key[i], sum[r][i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kPanel; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < nv; ++i) hn::StoreU(sum[r][i], d, o + r * o_stride + i * n);
}

template <int nv, class D, class T>
HWY_INLINE void AddStripe(D d, T* o, int64_t o_stride, const T* ds, int lanes, int rows, const T* k, int64_t k_stride,
                          int keys) {
  int r = 0;
  for (; r + kRows <= rows; r += kRows)
    AddPanel<kRows, nv>(d, o + r * o_stride, o_stride, ds + int64_t{r} * lanes, lanes, k, k_stride, keys);
  for (; r < rows; ++r)
    AddPanel<1, nv>(d, o + r * o_stride, o_stride, ds + int64_t{r} * lanes, lanes, k, k_stride, keys);
}

template <class T>
void AddRows(T* o, int64_t o_stride, const T* ds, int lanes, int rows, const T* k, int64_t k_stride, int keys, int dim,
             Words seen) {
  if (seen) {  // row by row, so that no row reads what it does not see
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < keys; ++j)
        if (seen[r] >> j & 1)
          AddRows<T>(o + r * o_stride, o_stride, ds + int64_t{r} * lanes + j, lanes, 1, k + j * k_stride, k_stride, 1,
                     dim, nullptr);
    return;
  }
  const Full<T> d;
  const hn::CappedTag<T, 1> d1;
  const int n = int(hn::Lanes(d));
  int e = 0;
  for (; e + kVectors * n <= dim; e += kVectors * n)
    AddStripe<kVectors>(d, o + e, o_stride, ds, lanes, rows, k + e, k_stride, keys);
  for (; e + n <= dim; e += n) AddStripe<1>(d, o + e, o_stride, ds, lanes, rows, k + e, k_stride, keys);
  for (; e < dim; ++e) AddStripe<1>(d1, o + e, o_stride, ds, lanes, rows, k + e, k_stride, keys);
}

/// Sixteen sums side by side whatever the vectors' length, put together in one order.
template <class T>
void DotRows(const T* x, int64_t x_stride, const T* y, int64_t y_stride, int rows, int dim, T* dots) {
  constexpr int kSums = 16;
  const hn::CappedTag<T, kSums> d;
  const int n = int(hn::Lanes(d));
  for (int r = 0; r < rows; ++r) {
    const T *a = x + r * x_stride, *b = y + r * y_stride;
    T sums[kSums] = {};
    int e = 0;
    for (; e + kSums <= dim; e += kSums)
      for (int i = 0; i < kSums; i += n)
        hn::StoreU(hn::MulAdd(hn::LoadU(d, a + e + i), hn::LoadU(d, b + e + i), hn::LoadU(d, sums + i)), d, sums + i);
    for (int i = 0; e < dim; ++e, ++i)
      sums[i] = hn::GetLane(hn::MulAdd(hn::Set(d, a[e]), hn::Set(d, b[e]), hn::Set(d, sums[i])));
    for (int half = kSums / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    dots[r] = sums[0];
  }
}

template <class T> void Add(T* HWY_RESTRICT to, int64_t step, const T* HWY_RESTRICT from, int n) {
  const Full<T> d;
  const int lanes = int(hn::Lanes(d));
  int i = 0;
  if (step == 1)
    for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
  for (; i < n; ++i) to[i * step] += from[i];
}

template <class T> constexpr BackwardKernels<T> kTable{Hide<T>, Gradients<T>, AddRows<T>, DotRows<T>, Add<T>};

}  // namespace

const BackwardKernels<float>* BackwardFloat() { return &kTable<float>; }
const BackwardKernels<double>* BackwardDouble() { return &kTable<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(BackwardFloat);
HWY_EXPORT(BackwardDouble);
template <> const BackwardKernels<float>& backward_kernels<float>() { return *HWY_DYNAMIC_DISPATCH(BackwardFloat)(); }
template <> const BackwardKernels<double>& backward_kernels<double>() {
  return *HWY_DYNAMIC_DISPATCH(BackwardDouble)();
}
}  // namespace qkv::kernels
#endif
