// score' = score - slope[head] * |p - j|, with vectors.
#include "core/targets.h"
#include "policies/expect_name.h"
#include "policies/per_head.h"
#include "qkv/policies.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "policies/alibi.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "policies/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::policies {
namespace HWY_NAMESPACE {
namespace {

template <class D, class T> HWY_INLINE hn::Vec<D> Distances(D d, const Tile<T>& t, int r, int j) {
  const bool queries = t.lanes_are_queries();
  const auto query = queries ? ConvertInts(d, t.query + r) : hn::Set(d, hn::TFromD<D>(t.query[r]));
  const auto key = queries ? hn::Set(d, hn::TFromD<D>(t.key[j])) : ConvertInts(d, t.key + j);
  return hn::Abs(hn::Sub(query, key));
}

/// slope {rows, padded}
template <class T> void SubtractDistances(const Tile<T>& t, const T* slope) {
  ForEachVector(t, [&](auto d, T* at, int r, int j) {
    hn::StoreU(hn::NegMulAdd(OfRows(d, t, slope, r), Distances(d, t, r, j), hn::LoadU(d, at)), d, at);
  });
}

/// d score / d slope = -|p - j|
template <class T> void SumDistances(const Tile<const T>&, const Tile<T>& gradient, KeyRange keys, const T*, T* sums) {
  SumRows(gradient, keys, sums, [&](auto d, int r, int j) {
    return hn::Neg(hn::Mul(hn::LoadU(d, gradient.values + gradient.at(r, j)), Distances(d, gradient, r, j)));
  });
}

template <class T> constexpr HeadKernels<T> kAlibi{SubtractDistances<T>, nullptr, SumDistances<T>};

}  // namespace

const HeadKernels<float>* AlibiFloat() { return &kAlibi<float>; }
const HeadKernels<double>* AlibiDouble() { return &kAlibi<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv {
namespace policies {
HWY_EXPORT(AlibiFloat);
HWY_EXPORT(AlibiDouble);
namespace {
class AlibiPass final : public HeadPass<AlibiPass> {
 public:
  explicit AlibiPass(Alibi p) : HeadPass(detail::describe(p)), p_(p) {}
  AlibiPass(const Alibi& p, const Inputs& in) : HeadPass(detail::flags<Alibi>()), p_(detail::bound(p, in)) {}
  template <class T> static const HeadKernels<T>& kernels() {
    if constexpr (std::is_same_v<T, float>) return *HWY_DYNAMIC_DISPATCH(AlibiFloat)();
    else return *HWY_DYNAMIC_DISPATCH(AlibiDouble)();
  }
  template <class T> void fill(const Sites& t, T* slopes) const { numbers_of_rows(p_.slopes, t, slopes); }
  bool reads_scores() const override { return false; }
  const Score* bind(const Inputs& in, passes::Arena& arena) const override { return arena.make(AlibiPass(p_, in)); }

 private:
  Alibi p_;
};
}  // namespace
}  // namespace policies

std::shared_ptr<const passes::Score> adapt_score(Alibi p) {
  policies::expect_name(p.slopes, "alibi_slopes");
  return std::make_shared<policies::AlibiPass>(p);
}
}  // namespace qkv
#endif
