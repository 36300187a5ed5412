// Walking along contiguous numbers with vectors, the last of which may be cut; compiled once an instruction set.
#if defined(QKV_KERNELS_SPAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_SPAN_INL_H_
#undef QKV_KERNELS_SPAN_INL_H_
#else
#define QKV_KERNELS_SPAN_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// All lanes of a vector.
struct Whole {
  template <class D> HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) const { return hn::LoadU(d, p); }
  template <class D> HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* p) const { hn::StoreU(v, d, p); }
  /// v, with zeros in lanes that lie behind the end.
  template <class D> HWY_INLINE hn::Vec<D> only(D, hn::Vec<D> v) const { return v; }
};

/// The first n lanes; nothing behind them is read or written.
struct Part {
  size_t n;
#if HWY_TARGET <= HWY_AVX2
  template <class D> HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) const {
    return hn::MaskedLoad(hn::FirstN(d, n), d, p);
  }
  template <class D> HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* p) const {
    hn::BlendedStore(v, hn::FirstN(d, n), d, p);
  }
#else
  template <class D> HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p) const {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)] = {};
    for (size_t i = 0; i < n; ++i) lanes[i] = p[i];
    return hn::Load(d, lanes);
  }
  template <class D> HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* p) const {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
#endif
  template <class D> HWY_INLINE hn::Vec<D> only(D d, hn::Vec<D> v) const {
    return hn::IfThenElseZero(hn::FirstN(d, n), v);
  }
};

/// Calls f(first number of a vector, Whole or Part) along n numbers.
template <class D, class F> HWY_INLINE void ForVectors(D d, int64_t n, F f) {
  const auto lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, Whole{});
  if (i < n) f(i, Part{size_t(n - i)});
}

/// The sum of a vector's lanes, in an order that depends on their number alone.
template <class D> HWY_INLINE hn::TFromD<D> Total(D d, hn::Vec<D> v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();
#endif
