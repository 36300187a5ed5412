// score' = score - slope[head] * |p - j|, with vectors.
#include "core/targets.h"
#include "policies/expect_name.h"
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

/// slope {rows, padded}
template <class T> void SubtractDistances(const Tile<T>& t, const T* slope) {
  const bool queries = t.lanes_are_queries();
  ForEachVector(t, [&](auto d, T* at, int r, int j) {
    const auto query = queries ? ConvertInts(d, t.query + r) : hn::Set(d, T(t.query[r]));
    const auto key = queries ? hn::Set(d, T(t.key[j])) : ConvertInts(d, t.key + j);
    const auto s = queries ? hn::LoadU(d, slope + r) : hn::Set(d, slope[r]);
    hn::StoreU(hn::NegMulAdd(s, hn::Abs(hn::Sub(query, key)), hn::LoadU(d, at)), d, at);
  });
}
void SubtractFloat(const Tile<float>& t, const float* slope) { SubtractDistances(t, slope); }
void SubtractDouble(const Tile<double>& t, const double* slope) { SubtractDistances(t, slope); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv {
namespace policies {
HWY_EXPORT(SubtractFloat);
HWY_EXPORT(SubtractDouble);
namespace {
class AlibiPass final : public passes::Score {
 public:
  explicit AlibiPass(Alibi p) : Score(detail::describe(p)), p_(p) {}
  AlibiPass(const Alibi& p, const Inputs& in) : Score(detail::flags<Alibi>()), p_(detail::bound(p, in)) {}
  void forward(const Tile<float>& t) const override {
    alignas(64) float slope[kMostLanes];
    slopes(t, slope);
    HWY_DYNAMIC_DISPATCH(SubtractFloat)(t, slope);
  }
  void forward(const Tile<double>& t) const override {
    alignas(64) double slope[kMostLanes];
    slopes(t, slope);
    HWY_DYNAMIC_DISPATCH(SubtractDouble)(t, slope);
  }
  void backward(const Tile<const float>&, const Tile<float>& gradient, std::span<double* const> sums) const override {
    sum(gradient, sums[0]);
  }
  void backward(const Tile<const double>&, const Tile<double>& gradient, std::span<double* const> sums) const override {
    sum(gradient, sums[0]);
  }
  bool reads_scores() const override { return false; }
  const Score* bind(const Inputs& in, passes::Arena& arena) const override { return arena.make(AlibiPass(p_, in)); }

 private:
  /// d score / d slope = -|p - j|
  template <class T> static void sum(const Tile<T>& gradient, double* slopes) {
    if (slopes == nullptr) return;
    for (int r = 0; r < gradient.rows; ++r) {
      double sum = 0;
      for (int j = 0; j < gradient.keys; ++j)
        sum += double(gradient(r, j)) * std::abs(gradient.query[r] - gradient.key[j]);
      slopes[gradient.head[r]] -= sum;
    }
  }
  static constexpr int kMostLanes = 64;
  template <class T> void slopes(const Tile<T>& t, T* slope) const {
    for (int r = 0; r < kMostLanes; ++r) slope[r] = r < t.rows ? p_.slopes.get<T>(t.head[r]) : T(0);
  }
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
