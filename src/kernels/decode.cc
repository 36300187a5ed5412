// Few rows against a block of keys; lanes are keys in the scores and value dimensions in the sums. See kernels.h.
#include "core/bits.h"
#include "core/ceil_div.h"
#include "core/targets.h"
#include "kernels/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decode.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "core/transpose-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr int kKeys = 16;   // keys that scores() transposes at a time
constexpr int kAhead = 32;  // rows of keys or values to prefetch

HWY_INLINE void PrefetchRow(const void* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(static_cast<const char*>(row) + at);
}

/// kt[e][j] = k[j][e], zeros where there is no key.   k {keys, head_dim}, kt {head_dim, kKeys}
template <class T> HWY_INLINE void TransposeKeys(const T* k, int64_t k_stride, int keys, int head_dim, T* kt) {
  int first = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    const hn::CappedTag<float, 16> d;
    const hn::FixedTag<float, 4> d4;
    const int n = int(hn::Lanes(d));
    for (; first + 4 <= keys; first += 4) {
      const T* rows = k + first * k_stride;
      int e = 0;
      for (; e + n <= head_dim; e += n)
        qkv::HWY_NAMESPACE::TransposeFourRows(d, rows + e, k_stride, hn::Set(d, 1.0f), kt + e * kKeys + first, kKeys);
      for (; e + 4 <= head_dim; e += 4)
        qkv::HWY_NAMESPACE::TransposeFourRows(d4, rows + e, k_stride, hn::Set(d4, 1.0f), kt + e * kKeys + first, kKeys);
      for (; e < head_dim; ++e)
        for (int j = 0; j < 4; ++j) kt[e * kKeys + first + j] = rows[j * k_stride + e];
    }
  }
#endif
  for (int j = first; j < kKeys; ++j)
    for (int e = 0; e < head_dim; ++e) kt[e * kKeys + j] = j < keys ? k[j * k_stride + e] : T(0);
}

/// kRows rows against kKeys keys; a chain of fused multiply-adds from +0 along d, as in prefill.
template <int kRows, class T>
HWY_INLINE void ScoreRows(const T* HWY_RESTRICT q, int head_dim, const T* HWY_RESTRICT kt, T* HWY_RESTRICT s) {
  const hn::CappedTag<T, kKeys> d;
  const int n = int(hn::Lanes(d));
  for (int lane = 0; lane < kKeys; lane += n) {
    hn::Vec<decltype(d)> sum[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
    for (int e = 0; e < head_dim; ++e) {
      const auto key = hn::LoadU(d, kt + int64_t{e} * kKeys + lane);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(key, hn::Set(d, q[int64_t{r} * head_dim + e]), sum[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) hn::StoreU(sum[r], d, s + int64_t{r} * kKeyBlock + lane);
  }
}

template <class T>
void Scores(const T* q, int rows, const T* k, int64_t k_stride, int keys, int head_dim, T* s, T* kt) {
  for (int j = 0; j < keys; j += kKeys) {
    const int here = keys - j < kKeys ? keys - j : kKeys;
    for (int i = 0; i < here && j + i + kAhead < keys; ++i)
      PrefetchRow(k + (j + i + kAhead) * k_stride, int64_t{head_dim} * int64_t{sizeof(T)});
    TransposeKeys(k + j * k_stride, k_stride, here, head_dim, kt);
    int r = 0;
    for (; r + 4 <= rows; r += 4) ScoreRows<4>(q + int64_t{r} * head_dim, head_dim, kt, s + int64_t{r} * kKeyBlock + j);
    if (r + 2 <= rows) ScoreRows<2>(q + int64_t{r} * head_dim, head_dim, kt, s + int64_t{r} * kKeyBlock + j), r += 2;
    if (r < rows) ScoreRows<1>(q + int64_t{r} * head_dim, head_dim, kt, s + int64_t{r} * kKeyBlock + j);
  }
}

template <class T> HWY_INLINE void HideKeys(T* s, int rows, int keys, Words visible) {
  const T minus_inf = hn::GetLane(MinusInf(Full<T>()));
  for (int j = 0; j < keys; ++j)
    for (int r = 0; r < rows; ++r)
      if (!(visible[j] >> r & 1)) s[r * kKeyBlock + j] = minus_inf;
}

template <class T> void RaiseMax(T* s, int rows, int keys, Words visible, T* m, T* alpha) {
  const Full<T> d;
  const hn::CappedTag<T, 1> d1;
  const int n = int(hn::Lanes(d));
  const int padded = int(round_up(keys, n));
  for (int r = 0; r < rows; ++r)
    for (int j = keys; j < padded; ++j) s[r * kKeyBlock + j] = hn::GetLane(MinusInf(d));
  if (visible) HideKeys(s, rows, keys, visible);
  for (int r = 0; r < rows; ++r) {
    auto largest = hn::Set(d, m[r]);
    for (int j = 0; j < padded; j += n) largest = hn::Max(largest, hn::LoadU(d, s + r * kKeyBlock + j));
    const auto now = hn::Set(d1, hn::GetLane(hn::MaxOfLanes(d, largest)));
    alpha[r] = hn::GetLane(Exp(d1, hn::Sub(hn::Set(d1, m[r]), FiniteMax(d1, now))));
    m[r] = hn::GetLane(now);
  }
}

template <class T> void Exponentiate(T* s, int rows, int keys, const T* m, const T* alpha, T* l) {
  const Full<T> d;
  const hn::CappedTag<T, 1> d1;
  const int n = int(hn::Lanes(d));
  for (int r = 0; r < rows; ++r) {
    T* row = s + r * kKeyBlock;
    const auto max = FiniteMax(d, hn::Set(d, m[r]));
    for (int j = 0; j < keys; j += n) hn::StoreU(Exp(d, hn::Sub(hn::LoadU(d, row + j), max)), d, row + j);
  }
  // In key order, rows side by side so that the additions of one need not wait for those of another.
  T sum[DecodeKernels<T>::kMaxRows] = {};
  for (int j = 0; j < keys; ++j)
    for (int r = 0; r < rows; ++r) sum[r] += s[r * kKeyBlock + j];
  for (int r = 0; r < rows; ++r)
    l[r] = hn::GetLane(hn::MulAdd(hn::Set(d1, l[r]), hn::Set(d1, alpha[r]), hn::Set(d1, sum[r])));
}

/// kRows rows, nv vectors of value dimensions, keys [first, last) in order.
template <int kRows, int nv, class D, class T>
HWY_INLINE void ValueRows(D d, T* HWY_RESTRICT o, int64_t o_stride, const T* HWY_RESTRICT p, const T* HWY_RESTRICT v,
                          int64_t v_stride, int first, int last) {
  const int n = int(hn::Lanes(d));
  hn::Vec<D> sum[kRows][nv];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < nv; ++i) sum[r][i] = hn::LoadU(d, o + r * o_stride + i * n);
  for (int j = first; j < last; ++j) {
    const T* row = v + j * v_stride;
    if (j + kAhead < last) PrefetchRow(row + kAhead * v_stride, int64_t{nv} * n * int64_t{sizeof(T)});
    hn::Vec<D> value[nv];
#pragma GCC unroll 4
    for (int i = 0; i < nv; ++i) value[i] = hn::LoadU(d, row + i * n);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, p[r * kKeyBlock + j]);
#pragma GCC unroll 4
      for (int i = 0; i < nv; ++i) sum[r][i] = hn::MulAdd(weight, value[i], sum[r][i]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < nv; ++i) hn::StoreU(sum[r][i], d, o + r * o_stride + i * n);
}

template <int nv, class D, class T>
HWY_INLINE void ValueStripe(D d, T* o, int64_t o_stride, const T* p, int rows, const T* v, int64_t v_stride, int first,
                            int last) {
  int r = 0;
  for (; r + 4 <= rows; r += 4)
    ValueRows<4, nv>(d, o + r * o_stride, o_stride, p + r * kKeyBlock, v, v_stride, first, last);
  if (r + 2 <= rows)
    ValueRows<2, nv>(d, o + r * o_stride, o_stride, p + r * kKeyBlock, v, v_stride, first, last), r += 2;
  if (r < rows) ValueRows<1, nv>(d, o + r * o_stride, o_stride, p + r * kKeyBlock, v, v_stride, first, last);
}

template <class T>
HWY_INLINE void AddValues(T* o, const T* p, int rows, const T* v, int64_t v_stride, int first, int last,
                          int value_dim) {
  const Full<T> d;
  const hn::CappedTag<T, 1> d1;
  const int n = int(hn::Lanes(d));
  int e = 0;
  for (; e + 4 * n <= value_dim; e += 4 * n) ValueStripe<4>(d, o + e, value_dim, p, rows, v + e, v_stride, first, last);
  for (; e + n <= value_dim; e += n) ValueStripe<1>(d, o + e, value_dim, p, rows, v + e, v_stride, first, last);
  for (; e < value_dim; ++e) ValueStripe<1>(d1, o + e, value_dim, p, rows, v + e, v_stride, first, last);
}

template <class T>
void Accumulate(T* o, const T* p, int rows, const T* v, int64_t v_stride, int keys, int value_dim, const T* alpha,
                Words visible) {
  for (int r = 0; r < rows; ++r)
    for (int e = 0; e < value_dim; ++e) o[int64_t{r} * value_dim + e] *= alpha[r];
  if (!visible) return AddValues(o, p, rows, v, v_stride, 0, keys, value_dim);
  // Stretches of keys that all rows see together; the others row by row, so that no row reads what it does not see.
  const uint64_t all = low_bits(rows);
  for (int j = 0; j < keys;) {
    int last = j + 1;
    while (last < keys && (visible[last] & all) == (visible[j] & all)) ++last;
    if ((visible[j] & all) == all) {
      AddValues(o, p, rows, v, v_stride, j, last, value_dim);
    } else {
      for (int r = 0; r < rows; ++r)
        if (visible[j] >> r & 1)
          AddValues(o + int64_t{r} * value_dim, p + r * kKeyBlock, 1, v, v_stride, j, last, value_dim);
    }
    j = last;
  }
}

template <class T> constexpr DecodeKernels<T> kTable{Scores<T>, RaiseMax<T>, Exponentiate<T>, Accumulate<T>};

}  // namespace

const DecodeKernels<float>* DecodeFloat() { return &kTable<float>; }
const DecodeKernels<double>* DecodeDouble() { return &kTable<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(DecodeFloat);
HWY_EXPORT(DecodeDouble);
template <> const DecodeKernels<float>& decode_kernels<float>() { return *HWY_DYNAMIC_DISPATCH(DecodeFloat)(); }
template <> const DecodeKernels<double>& decode_kernels<double>() { return *HWY_DYNAMIC_DISPATCH(DecodeDouble)(); }
}  // namespace qkv::kernels
#endif
