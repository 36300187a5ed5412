// See elementwise.h.
#include "kernels/elementwise.h"

#include "core/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/span-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

template <class T> void Add(const T* x, const T* y, int64_t n, T* out) {
  const Full<T> d;
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    lanes.store(d, hn::Add(lanes.load(d, x + i), lanes.load(d, y + i)), out + i);
  });
}

template <class T> void Multiply(const T* x, const T* y, int64_t n, T* out) {
  const Full<T> d;
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    lanes.store(d, hn::Mul(lanes.load(d, x + i), lanes.load(d, y + i)), out + i);
  });
}

template <class T> void Scale(const T* x, T factor, int64_t n, T* out) {
  const Full<T> d;
  const auto f = hn::Set(d, factor);
  ForVectors(d, n, [=](int64_t i, auto lanes) { lanes.store(d, hn::Mul(lanes.load(d, x + i), f), out + i); });
}

template <class T> void Drop(const T* x, const uint64_t* keep, T factor, int64_t n, T* out) {
  const Full<T> d;
  const auto f = hn::Set(d, factor);
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    const auto kept = RowMask(d, keep[i / 64], size_t(i % 64));
    lanes.store(d, hn::IfThenElseZero(kept, hn::Mul(lanes.load(d, x + i), f)), out + i);
  });
}

/// The sum of f(d, x, y) of the numbers widened to double; f of zeros is 0, which lanes behind the end add.
template <class F> HWY_INLINE double SumWide(const double* x, const double* y, int64_t n, F f) {
  const Full<double> d;
  auto even = hn::Zero(d), odd = hn::Zero(d);
  ForVectors(d, n, [&](int64_t i, auto lanes) {
    const auto term = f(d, lanes.load(d, x + i), lanes.load(d, y + i));
    const auto sum = hn::Add(odd, term);
    odd = even;
    even = sum;
  });
  return Total(d, hn::Add(even, odd));
}

#if HWY_TARGET == HWY_SCALAR
template <class F> HWY_INLINE double SumWide(const float* x, const float* y, int64_t n, F f) {
  const Full<double> d;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += hn::GetLane(f(d, hn::Set(d, double(x[i])), hn::Set(d, double(y[i]))));
  return sum;
}

void AddWide(const float* x, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += double(x[i]);
}
#else
template <class F> HWY_INLINE double SumWide(const float* x, const float* y, int64_t n, F f) {
  const Full<float> d;
  const Full<double> wide;
  const hn::Half<Full<float>> half;
  // Two of each, which take turns: one alone would wait for its last addition.
  auto low = hn::Zero(wide), high = low, other_low = low, other_high = low;
  ForVectors(d, n, [&](int64_t i, auto lanes) {
    const auto a = lanes.load(d, x + i), b = lanes.load(d, y + i);
    const auto new_low = hn::Add(
        other_low, f(wide, hn::PromoteTo(wide, hn::LowerHalf(half, a)), hn::PromoteTo(wide, hn::LowerHalf(half, b))));
    const auto new_high = hn::Add(
        other_high, f(wide, hn::PromoteTo(wide, hn::UpperHalf(half, a)), hn::PromoteTo(wide, hn::UpperHalf(half, b))));
    other_low = low, other_high = high;
    low = new_low, high = new_high;
  });
  return Total(wide, hn::Add(hn::Add(low, other_low), hn::Add(high, other_high)));
}

void AddWide(const float* x, int64_t n, double* to) {
  const Full<double> d;
  const hn::Rebind<float, Full<double>> narrow;
  const auto lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::PromoteTo(d, hn::LoadU(narrow, x + i))), d, to + i);
  for (; i < n; ++i) to[i] += double(x[i]);
}
#endif
void AddWide(const double* x, int64_t n, double* to) { Add<double>(x, to, n, to); }

struct SquareOfFirst {
  template <class D> HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> x, hn::Vec<D>) const { return hn::Mul(x, x); }
};
struct SquareOfDifference {
  template <class D> HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> x, hn::Vec<D> y) const {
    const auto difference = hn::Sub(x, y);
    return hn::Mul(difference, difference);
  }
};
struct AbsoluteDifference {
  template <class D> HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> x, hn::Vec<D> y) const {
    return hn::Abs(hn::Sub(x, y));
  }
};

template <class T> double SumOfSquares(const T* x, int64_t n) { return SumWide(x, x, n, SquareOfFirst()); }
template <class T> double SquaredDifference(const T* x, const T* y, int64_t n) {
  return SumWide(x, y, n, SquareOfDifference());
}
template <class T> double AbsoluteDifferences(const T* x, const T* y, int64_t n) {
  return SumWide(x, y, n, AbsoluteDifference());
}

template <class T> void Difference(const T* x, const T* y, T factor, int64_t n, T* out) {
  const Full<T> d;
  const auto f = hn::Set(d, factor);
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    lanes.store(d, hn::Mul(hn::Sub(lanes.load(d, x + i), lanes.load(d, y + i)), f), out + i);
  });
}

template <class T> void Sign(const T* x, const T* y, T factor, int64_t n, T* out) {
  const Full<T> d;
  const auto plus = hn::Set(d, factor), minus = hn::Neg(plus);
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    const auto a = lanes.load(d, x + i), b = lanes.load(d, y + i);
    const auto unordered = hn::Sub(a, b);  // 0 where equal, NaN where one is
    const auto signed_factor = hn::IfThenElse(hn::Gt(a, b), plus, minus);
    const auto differ = hn::Or(hn::Gt(a, b), hn::Lt(a, b));
    lanes.store(d, hn::IfThenElse(differ, signed_factor, unordered), out + i);
  });
}

template <class T> const ElementwiseKernels<T>* Table() {
  static constexpr ElementwiseKernels<T> kTable{Add<T>,
                                                Multiply<T>,
                                                Scale<T>,
                                                Drop<T>,
                                                AddWide,
                                                SumOfSquares<T>,
                                                SquaredDifference<T>,
                                                AbsoluteDifferences<T>,
                                                Difference<T>,
                                                Sign<T>};
  return &kTable;
}

}  // namespace

const ElementwiseKernels<float>* ElementwiseFloat() { return Table<float>(); }
const ElementwiseKernels<double>* ElementwiseDouble() { return Table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(ElementwiseFloat);
HWY_EXPORT(ElementwiseDouble);
template <> const ElementwiseKernels<float>& elementwise_kernels<float>() {
  return *HWY_DYNAMIC_DISPATCH(ElementwiseFloat)();
}
template <> const ElementwiseKernels<double>& elementwise_kernels<double>() {
  return *HWY_DYNAMIC_DISPATCH(ElementwiseDouble)();
}
}  // namespace qkv::kernels
#endif
