// See cross_entropy.h.
#include "kernels/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "core/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/span-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kStretch = 1024;

/// A NaN may be passed over: the sum of the exponentials finds it. n is at least 1.
template <class T> T Largest(const T* x, int64_t n) {
  const Full<T> d;
  const auto lanes = int64_t(hn::Lanes(d));
  auto a = MinusInf(d), b = a, c = a, e = a;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Max(a, hn::LoadU(d, x + i));
    b = hn::Max(b, hn::LoadU(d, x + i + lanes));
    c = hn::Max(c, hn::LoadU(d, x + i + 2 * lanes));
    e = hn::Max(e, hn::LoadU(d, x + i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) a = hn::Max(a, hn::LoadU(d, x + i));
  T largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(a, b), hn::Max(c, e))));
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// The sum of f(c, lanes), vectors that are 0 behind the end, over at most kStretch numbers.
template <class T, class F> HWY_INLINE T SumOfStretch(int64_t n, F f) {
  const Full<T> d;
  auto even = hn::Zero(d), odd = hn::Zero(d);
  ForVectors(d, n, [&](int64_t i, auto lanes) {
    const auto sum = hn::Add(odd, f(i, lanes));
    odd = even;
    even = sum;
  });
  return Total(d, hn::Add(even, odd));
}

template <bool kStore, class T> double SumOfExponentials(const T* x, T max, int64_t n, T* exponentials) {
  const Full<T> d;
  const auto m = hn::Set(d, max);
  double sum = 0;
  for (int64_t first = 0; first < n; first += kStretch)
    sum += double(SumOfStretch<T>(std::min(kStretch, n - first), [&](int64_t i, auto lanes) {
      const auto e = Exp(d, hn::Sub(lanes.load(d, x + first + i), m));
      if constexpr (kStore) lanes.store(d, e, exponentials + first + i);
      return lanes.only(d, e);
    }));
  return sum;
}

template <class T> RowSoftmax<T> Softmax(const T* x, int64_t n, T* exponentials) {
  const T max = Largest(x, n);
  // Infinities of one sign have a difference that is no number, and so have the sums.
  const double sum = exponentials ? SumOfExponentials<true>(x, max, n, exponentials)
                                  : SumOfExponentials<false>(x, max, n, exponentials);
  if (max - max == T(0)) return {max, sum};
  return {max, std::numeric_limits<double>::quiet_NaN()};
}

template <class T> double Sum(const T* x, int64_t n) {
  const Full<T> d;
  double sum = 0;
  for (int64_t first = 0; first < n; first += kStretch)
    sum += double(SumOfStretch<T>(std::min(kStretch, n - first),
                                  [&](int64_t i, auto lanes) { return lanes.load(d, x + first + i); }));
  return sum;
}

template <class T> void Gradient(const T* exponentials, T factor, T rest, int64_t n, T* to) {
  const Full<T> d;
  const auto f = hn::Set(d, factor), r = hn::Set(d, rest);
  ForVectors(d, n,
             [=](int64_t i, auto lanes) { lanes.store(d, hn::MulSub(lanes.load(d, exponentials + i), f, r), to + i); });
}

template <class T> void GradientOfLogits(const T* x, T max, T factor, T rest, int64_t n, T* to) {
  const Full<T> d;
  const auto m = hn::Set(d, max), f = hn::Set(d, factor), r = hn::Set(d, rest);
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    lanes.store(d, hn::MulSub(Exp(d, hn::Sub(lanes.load(d, x + i), m)), f, r), to + i);
  });
}

template <class T> const CrossEntropyKernels<T>* Table() {
  static constexpr CrossEntropyKernels<T> kTable{Softmax<T>, Sum<T>, Gradient<T>, GradientOfLogits<T>};
  return &kTable;
}

}  // namespace

const CrossEntropyKernels<float>* CrossEntropyFloat() { return Table<float>(); }
const CrossEntropyKernels<double>* CrossEntropyDouble() { return Table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(CrossEntropyFloat);
HWY_EXPORT(CrossEntropyDouble);
template <> const CrossEntropyKernels<float>& cross_entropy_kernels<float>() {
  return *HWY_DYNAMIC_DISPATCH(CrossEntropyFloat)();
}
template <> const CrossEntropyKernels<double>& cross_entropy_kernels<double>() {
  return *HWY_DYNAMIC_DISPATCH(CrossEntropyDouble)();
}
}  // namespace qkv::kernels
#endif
