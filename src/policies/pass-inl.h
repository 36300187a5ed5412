// Walking over a tile with vectors; compiled once an instruction set.
#if defined(QKV_POLICIES_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_POLICIES_PASS_INL_H_
#undef QKV_POLICIES_PASS_INL_H_
#else
#define QKV_POLICIES_PASS_INL_H_
#endif

#include "hwy/highway.h"
#include "qkv/pass.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::policies {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls f(d, scores, r, j) with a pointer to the scores of one vector of sites and the first of them. The library's own
/// tiles are padded to whole vectors.
template <class T, class F> HWY_INLINE void ForEachVector(const Tile<T>& t, F f) {
  const hn::ScalableTag<T> d;
  const int n = int(hn::Lanes(d));
  if (t.lanes_are_queries()) {
    for (int j = 0; j < t.keys; ++j)
      for (int r = 0; r < t.rows; r += n) f(d, t.values + t.at(r, j), r, j);
  } else {
    for (int r = 0; r < t.rows; ++r)
      for (int j = 0; j < t.keys; j += n) f(d, t.values + t.at(r, j), r, j);
  }
}

/// sums[r] = the sum over keys [first, last) of f(d, r, j), a vector of numbers for the sites from (r, j) on, in the same order for
/// vectors of 32 bytes and more. sums {rows, padded}.
template <class T, class F> HWY_INLINE void SumRows(const Tile<T>& t, KeyRange keys, T* sums, F f) {
  const hn::CappedTag<T, 32 / sizeof(T)> d;
  const int n = int(hn::Lanes(d));
  if (t.lanes_are_queries()) {
    for (int r = 0; r < t.rows; r += n) {
      auto sum = hn::Zero(d);
      for (int j = keys.first; j < keys.last; ++j) sum = hn::Add(sum, f(d, r, j));
      hn::StoreU(sum, d, sums + r);
    }
  } else {
    for (int r = 0; r < t.rows; ++r) {
      auto sum = hn::Zero(d);
      for (int j = keys.first; j < keys.last; j += n)
        sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, size_t(keys.last - j)), f(d, r, j)));
      sums[r] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

/// The numbers of the rows of a vector of sites: numbers {rows, padded}.
template <class D, class T> HWY_INLINE hn::Vec<D> OfRows(D d, const Tile<T>& t, const hn::TFromD<D>* numbers, int r) {
  return t.lanes_are_queries() ? hn::LoadU(d, numbers + r) : hn::Set(d, numbers[r]);
}

/// Integers as floats of the same number of lanes.
template <class D> HWY_INLINE hn::Vec<D> ConvertInts(D d, const int32_t* from) {
  using T = hn::TFromD<D>;
  if constexpr (sizeof(T) == 4) return hn::ConvertTo(d, hn::LoadU(hn::RebindToSigned<D>(), from));
  else return hn::PromoteTo(d, hn::LoadU(hn::Rebind<int32_t, D>(), from));
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();
#endif
