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
void SubtractFloat(const Tile<float>& t, const float* slope) { SubtractDistances(t, slope); }
void SubtractDouble(const Tile<double>& t, const double* slope) { SubtractDistances(t, slope); }

/// d score / d slope = -|p - j|
template <class T> void SumDistances(const Tile<T>& gradient, T* sums) {
  SumRows(gradient, sums, [&](auto d, int r, int j) {
    return hn::Neg(hn::Mul(hn::LoadU(d, gradient.values + gradient.at(r, j)), Distances(d, gradient, r, j)));
  });
}
void SumFloat(const Tile<float>& gradient, float* sums) { SumDistances(gradient, sums); }
void SumDouble(const Tile<double>& gradient, double* sums) { SumDistances(gradient, sums); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv {
namespace policies {
HWY_EXPORT(SubtractFloat);
HWY_EXPORT(SubtractDouble);
HWY_EXPORT(SumFloat);
HWY_EXPORT(SumDouble);
namespace {
class AlibiPass final : public passes::Score {
 public:
  explicit AlibiPass(Alibi p) : Score(detail::describe(p)), p_(p) {}
  AlibiPass(const Alibi& p, const Inputs& in) : Score(detail::flags<Alibi>()), p_(detail::bound(p, in)) {}
  void forward(const Tile<float>& t) const override {
    alignas(64) float slope[kMostRows];
    numbers_of_rows(p_.slopes, t, slope);
    HWY_DYNAMIC_DISPATCH(SubtractFloat)(t, slope);
  }
  void forward(const Tile<double>& t) const override {
    alignas(64) double slope[kMostRows];
    numbers_of_rows(p_.slopes, t, slope);
    HWY_DYNAMIC_DISPATCH(SubtractDouble)(t, slope);
  }
  void backward(const Tile<const float>&, const Tile<float>& gradient, std::span<double* const> sums) const override {
    if (sums[0] == nullptr) return;
    alignas(64) float of_rows[kMostRows];
    HWY_DYNAMIC_DISPATCH(SumFloat)(gradient, of_rows);
    add_to_heads(gradient, of_rows, sums[0]);
  }
  void backward(const Tile<const double>&, const Tile<double>& gradient, std::span<double* const> sums) const override {
    if (sums[0] == nullptr) return;
    alignas(64) double of_rows[kMostRows];
    HWY_DYNAMIC_DISPATCH(SumDouble)(gradient, of_rows);
    add_to_heads(gradient, of_rows, sums[0]);
  }
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
