// Products and softmax of a tile of queries against a block of keys; lanes are queries. See kernels.h.
#include "core/targets.h"
#include "kernels/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prefill.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

/// Calls f with the number of vectors (1 to 3) and the first lane of each group of vectors.
template <class T, class F> HWY_INLINE void ForEachGroup(int lanes, F f) {
  const int n = int(hn::Lanes(Full<T>()));
  int lane = 0;
  for (; lane + 3 * n <= lanes; lane += 3 * n) f(std::integral_constant<int, 3>(), lane);
  if (lane + 2 * n <= lanes) f(std::integral_constant<int, 2>(), lane);
  else if (lane + n <= lanes) f(std::integral_constant<int, 1>(), lane);
}

/// Calls f with blocks of `most`, then 4, 2 and 1 of n things, and the first of each.
template <int most, class F> HWY_INLINE void ForEachPanel(int n, F f) {
  int i = 0;
  for (; i + most <= n; i += most) f(std::integral_constant<int, most>(), i);
  if constexpr (most > 4)
    if (i + 4 <= n) f(std::integral_constant<int, 4>(), i), i += 4;
  if constexpr (most > 2)
    if (i + 2 <= n) f(std::integral_constant<int, 2>(), i), i += 2;
  if constexpr (most > 1)
    if (i < n) f(std::integral_constant<int, 1>(), i);
}

/// How many rows of the broadcast operand go with nv vectors: all accumulators fit the registers.
constexpr int Panel(int nv) { return kManyRegisters ? 8 : nv == 3 ? 4 : nv == 2 ? 6 : 8; }

// s[j][r] for kKeys keys and nv vectors of rows; a chain of fused multiply-adds from +0 along d.
template <int kKeys, int nv, class T>
HWY_INLINE void ScorePanel(const T* HWY_RESTRICT q, int lanes, const T* HWY_RESTRICT k, int64_t k_stride, int head_dim,
                           T* HWY_RESTRICT s) {
  const Full<T> d;
  const size_t n = hn::Lanes(d);
  hn::Vec<decltype(d)> sum[kKeys][nv];
#pragma GCC unroll 8
  for (int j = 0; j < kKeys; ++j)
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) sum[j][v] = hn::Zero(d);
  for (int e = 0; e < head_dim; ++e) {
    hn::Vec<decltype(d)> row[nv];
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) row[v] = hn::LoadU(d, q + int64_t{e} * lanes + v * n);
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) {
      const auto key = hn::Set(d, k[j * k_stride + e]);
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) sum[j][v] = hn::MulAdd(key, row[v], sum[j][v]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kKeys; ++j)
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) hn::StoreU(sum[j][v], d, s + int64_t{j} * lanes + v * n);
}

template <class T> void Scores(const T* q, int lanes, const T* k, int64_t k_stride, int keys, int head_dim, T* s) {
  ForEachGroup<T>(lanes, [&](auto nv, int lane) {
    ForEachPanel<Panel(nv)>(keys, [&](auto panel, int j) {
      ScorePanel<panel, nv>(q + lane, lanes, k + j * k_stride, k_stride, head_dim, s + int64_t{j} * lanes + lane);
    });
  });
}

template <bool kHide, class T>
HWY_INLINE void RaiseMaxOf(T* HWY_RESTRICT s, int keys, int lanes, Words visible, T* m, T* alpha) {
  const Full<T> d;
  const size_t n = hn::Lanes(d);
  ForEachGroup<T>(lanes, [&](auto group, int lane) {
    constexpr int nv = group;
    const auto look = [&](int j, int v) {
      T* at = s + int64_t{j} * lanes + lane + v * n;
      auto x = hn::LoadU(d, at);
      if constexpr (kHide) {
        x = hn::IfThenElse(RowMask(d, visible[j], lane + v * n), x, MinusInf(d));
        hn::StoreU(x, d, at);
      }
      return x;
    };
    hn::Vec<decltype(d)> largest[nv], of_odd[nv];  // two chains, for the latency of Max
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) largest[v] = of_odd[v] = hn::LoadU(d, m + lane + v * n);
    int j = 0;
    for (; j + 2 <= keys; j += 2) {
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) {
        largest[v] = hn::Max(largest[v], look(j, v));
        of_odd[v] = hn::Max(of_odd[v], look(j + 1, v));
      }
    }
    for (; j < keys; ++j)
      for (int v = 0; v < nv; ++v) largest[v] = hn::Max(largest[v], look(j, v));
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) {
      const size_t at = lane + v * n;
      const auto before = hn::LoadU(d, m + at), now = hn::Max(largest[v], of_odd[v]);
      hn::StoreU(now, d, m + at);
      hn::StoreU(Exp(d, hn::Sub(before, FiniteMax(d, now))), d, alpha + at);
    }
  });
}

template <class T> void RaiseMax(T* s, int keys, int lanes, Words visible, T* m, T* alpha) {
  if (visible) RaiseMaxOf<true>(s, keys, lanes, visible, m, alpha);
  else RaiseMaxOf<false>(s, keys, lanes, visible, m, alpha);
}

template <class T> void Exponentiate(T* HWY_RESTRICT s, int keys, int lanes, const T* m, const T* alpha, T* l) {
  const Full<T> d;
  const size_t n = hn::Lanes(d);
  ForEachGroup<T>(lanes, [&](auto group, int lane) {
    constexpr int nv = group;
    hn::Vec<decltype(d)> max[nv], sum[nv];
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) max[v] = FiniteMax(d, hn::LoadU(d, m + lane + v * n)), sum[v] = hn::Zero(d);
    for (int j = 0; j < keys; ++j) {
      T* at = s + int64_t{j} * lanes + lane;
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) {
        const auto p = Exp(d, hn::Sub(hn::LoadU(d, at + v * n), max[v]));
        hn::StoreU(p, d, at + v * n);
        sum[v] = hn::Add(sum[v], p);
      }
    }
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) {
      T* at = l + lane + v * n;
      hn::StoreU(hn::MulAdd(hn::LoadU(d, at), hn::LoadU(d, alpha + lane + v * n), sum[v]), d, at);
    }
  });
}

// o[e][r] for kDims value dimensions and nv vectors of rows, keys in order.
template <int kDims, int nv, bool kHide, class T>
HWY_INLINE void ValuePanel(T* HWY_RESTRICT o, const T* HWY_RESTRICT p, int lanes, const T* HWY_RESTRICT v,
                           int64_t v_stride, int keys, const T* HWY_RESTRICT alpha, Words visible, int lane) {
  const Full<T> d;
  const size_t n = hn::Lanes(d);
  hn::Vec<decltype(d)> sum[kDims][nv];
#pragma GCC unroll 8
  for (int e = 0; e < kDims; ++e)
#pragma GCC unroll 3
    for (int i = 0; i < nv; ++i)
      sum[e][i] = hn::Mul(hn::LoadU(d, o + int64_t{e} * lanes + i * n), hn::LoadU(d, alpha + i * n));
  for (int j = 0; j < keys; ++j) {
    hn::Vec<decltype(d)> weight[nv];
#pragma GCC unroll 3
    for (int i = 0; i < nv; ++i) weight[i] = hn::LoadU(d, p + int64_t{j} * lanes + i * n);
#pragma GCC unroll 8
    for (int e = 0; e < kDims; ++e) {
      const auto value = hn::Set(d, v[j * v_stride + e]);
#pragma GCC unroll 3
      for (int i = 0; i < nv; ++i) {
        if constexpr (kHide) {
          const auto sees = RowMask(d, visible[j], lane + i * n);
          sum[e][i] = hn::IfThenElse(sees, hn::MulAdd(weight[i], value, sum[e][i]), sum[e][i]);
        } else {
          sum[e][i] = hn::MulAdd(weight[i], value, sum[e][i]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int e = 0; e < kDims; ++e)
#pragma GCC unroll 3
    for (int i = 0; i < nv; ++i) hn::StoreU(sum[e][i], d, o + int64_t{e} * lanes + i * n);
}

template <bool kHide, class T>
HWY_INLINE void AccumulateOf(T* o, const T* p, int lanes, const T* v, int64_t v_stride, int keys, int value_dim,
                             const T* alpha, Words visible) {
  ForEachGroup<T>(lanes, [&](auto nv, int lane) {
    ForEachPanel<Panel(nv)>(value_dim, [&](auto panel, int e) {
      ValuePanel<panel, nv, kHide>(o + int64_t{e} * lanes + lane, p + lane, lanes, v + e, v_stride, keys, alpha + lane,
                                   visible, lane);
    });
  });
}
template <class T>
void Accumulate(T* o, const T* p, int lanes, const T* v, int64_t v_stride, int keys, int value_dim, const T* alpha,
                Words visible) {
  if (visible) AccumulateOf<true>(o, p, lanes, v, v_stride, keys, value_dim, alpha, visible);
  else AccumulateOf<false>(o, p, lanes, v, v_stride, keys, value_dim, alpha, visible);
}

template <class T> bool AllFinite(const T* v, int64_t v_stride, int keys, int value_dim) {
  const Full<T> d;
  const int n = int(hn::Lanes(d));
  auto sum = hn::Zero(d);  // of x - x: 0, or NaN where x is infinite or NaN
  T rest = 0;
  for (int j = 0; j < keys; ++j) {
    const T* row = v + j * v_stride;
    int e = 0;
    for (; e + n <= value_dim; e += n) {
      const auto x = hn::LoadU(d, row + e);
      sum = hn::Add(sum, hn::Sub(x, x));
    }
    for (; e < value_dim; ++e) rest += row[e] - row[e];
  }
  return rest == 0 && hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)));
}

template <class T> void Drop(T* p, int keys, int lanes, Words keep, T factor) {
  const Full<T> d;
  const int n = int(hn::Lanes(d));
  const auto kept = hn::Set(d, factor);
  for (int j = 0; j < keys; ++j)
    for (int lane = 0; lane < lanes; lane += n) {
      T* at = p + int64_t{j} * lanes + lane;
      hn::StoreU(hn::IfThenElseZero(RowMask(d, keep[j], size_t(lane)), hn::Mul(hn::LoadU(d, at), kept)), d, at);
    }
}

// o[e][r] = o[e][r] * scale[r] + add
template <class T>
HWY_INLINE void ScaleRows(T* o, int value_dim, int lanes, int lane, hn::Vec<Full<T>> scale, hn::Vec<Full<T>> add) {
  const Full<T> d;
  for (int e = 0; e < value_dim; ++e) {
    T* at = o + int64_t{e} * lanes + lane;
    hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d, at), scale), add), d, at);
  }
}

template <class T>
void Merge(T* m, T* l, T* o, const T* later_m, const T* later_l, const T* later_o, int value_dim, int lanes) {
  const Full<T> d;
  const int n = int(hn::Lanes(d));
  for (int lane = 0; lane < lanes; lane += n) {
    const auto a = hn::LoadU(d, m + lane), b = hn::LoadU(d, later_m + lane);
    const auto largest = hn::Max(a, b), finite = FiniteMax(d, largest);
    const auto before = Exp(d, hn::Sub(a, finite)), later = Exp(d, hn::Sub(b, finite));
    hn::StoreU(largest, d, m + lane);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, l + lane), before, hn::Mul(hn::LoadU(d, later_l + lane), later)), d, l + lane);
    for (int e = 0; e < value_dim; ++e) {
      const int64_t at = int64_t{e} * lanes + lane;
      hn::StoreU(hn::MulAdd(hn::LoadU(d, o + at), before, hn::Mul(hn::LoadU(d, later_o + at), later)), d, o + at);
    }
  }
}

template <class T> void MergeSink(T* m, T* l, T* o, const T* sink, int value_dim, int lanes) {
  const Full<T> d;
  const int n = int(hn::Lanes(d));
  for (int lane = 0; lane < lanes; lane += n) {
    const auto a = hn::LoadU(d, m + lane), b = hn::LoadU(d, sink + lane);
    const auto largest = hn::Max(a, b), finite = FiniteMax(d, largest);
    const auto before = Exp(d, hn::Sub(a, finite));
    hn::StoreU(largest, d, m + lane);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, l + lane), before, Exp(d, hn::Sub(b, finite))), d, l + lane);
    ScaleRows<T>(o, value_dim, lanes, lane, before, hn::Zero(d));
  }
}

template <class T> HWY_INLINE hn::Vec<Full<T>> Reciprocal(Full<T> d, const T* l) {
  const auto sum = hn::LoadU(d, l);
  return hn::IfThenZeroElse(hn::Eq(sum, hn::Zero(d)), hn::Div(hn::Set(d, T(1)), sum));
}

template <class T> void Normalise(const T* l, T* o, int value_dim, int lanes) {
  const Full<T> d;
  const int n = int(hn::Lanes(d));
  for (int lane = 0; lane < lanes; lane += n)
    ScaleRows<T>(o, value_dim, lanes, lane, Reciprocal<T>(d, l + lane), hn::Zero(d));
}

template <class T> void Weights(T* s, int keys, int lanes, const T* m, const T* l) {
  const Full<T> d;
  const int n = int(hn::Lanes(d));
  for (int lane = 0; lane < lanes; lane += n) {
    const auto max = FiniteMax(d, hn::LoadU(d, m + lane)), scale = Reciprocal<T>(d, l + lane);
    for (int j = 0; j < keys; ++j) {
      T* at = s + int64_t{j} * lanes + lane;
      hn::StoreU(hn::Mul(Exp(d, hn::Sub(hn::LoadU(d, at), max)), scale), d, at);
    }
  }
}

template <class T> PrefillKernels<T> Table() {
  const int n = int(hn::Lanes(Full<T>()));
  return {hwy::TargetName(HWY_TARGET),
          n,
          3 * n > 24 ? 3 * n : 24,
          Scores<T>,
          RaiseMax<T>,
          Exponentiate<T>,
          Accumulate<T>,
          AllFinite<T>,
          Drop<T>,
          Merge<T>,
          MergeSink<T>,
          Normalise<T>,
          Weights<T>};
}

}  // namespace

const PrefillKernels<float>* PrefillFloat() {
  static const PrefillKernels<float> table = Table<float>();
  return &table;
}
const PrefillKernels<double>* PrefillDouble() {
  static const PrefillKernels<double> table = Table<double>();
  return &table;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(PrefillFloat);
HWY_EXPORT(PrefillDouble);
template <> const PrefillKernels<float>& prefill_kernels<float>() { return *HWY_DYNAMIC_DISPATCH(PrefillFloat)(); }
template <> const PrefillKernels<double>& prefill_kernels<double>() { return *HWY_DYNAMIC_DISPATCH(PrefillDouble)(); }
}  // namespace qkv::kernels
#endif
