// score' = score * scale[head], with vectors.
#include "core/targets.h"
#include "policies/per_head.h"
#include "qkv/policies.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "policies/scales.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "policies/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::policies {
namespace HWY_NAMESPACE {

/// Of scores, and of gradients by them.  scale {rows, padded}
template <class T> void Times(const Tile<T>& t, const T* scale) {
  ForEachVector(
      t, [&](auto d, T* at, int r, int) { hn::StoreU(hn::Mul(hn::LoadU(d, at), OfRows(d, t, scale, r)), d, at); });
}
void TimesFloat(const Tile<float>& t, const float* scale) { Times(t, scale); }
void TimesDouble(const Tile<double>& t, const double* scale) { Times(t, scale); }

/// d score' / d scale = score
template <class T> void SumScores(const Tile<const T>& before, const Tile<T>& gradient, T* sums) {
  SumRows(gradient, sums, [&](auto d, int r, int j) {
    const auto x = hn::LoadU(d, before.values + before.at(r, j));
    const auto above = hn::LoadU(d, gradient.values + gradient.at(r, j));
    return hn::IfThenZeroElse(hn::Eq(above, hn::Zero(d)), hn::Mul(above, x));
  });
}
void SumScoresFloat(const Tile<const float>& before, const Tile<float>& gradient, float* sums) {
  SumScores(before, gradient, sums);
}
void SumScoresDouble(const Tile<const double>& before, const Tile<double>& gradient, double* sums) {
  SumScores(before, gradient, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace qkv {
namespace policies {
HWY_EXPORT(TimesFloat);
HWY_EXPORT(TimesDouble);
HWY_EXPORT(SumScoresFloat);
HWY_EXPORT(SumScoresDouble);
namespace {
class ScalesPass final : public passes::Score {
 public:
  explicit ScalesPass(Scales p) : Score(detail::describe(p)), p_(p) {}
  ScalesPass(const Scales& p, const Inputs& in) : Score(detail::flags<Scales>()), p_(detail::bound(p, in)) {}
  void forward(const Tile<float>& t) const override {
    alignas(64) float scale[kMostRows];
    numbers_of_rows(p_.scales, t, scale);
    HWY_DYNAMIC_DISPATCH(TimesFloat)(t, scale);
  }
  void forward(const Tile<double>& t) const override {
    alignas(64) double scale[kMostRows];
    numbers_of_rows(p_.scales, t, scale);
    HWY_DYNAMIC_DISPATCH(TimesDouble)(t, scale);
  }
  void backward(const Tile<const float>& before, const Tile<float>& gradient,
                std::span<double* const> sums) const override {
    if (sums[0] != nullptr) {
      alignas(64) float of_rows[kMostRows];
      HWY_DYNAMIC_DISPATCH(SumScoresFloat)(before, gradient, of_rows);
      add_to_heads(gradient, of_rows, sums[0]);
    }
    forward(gradient);
  }
  void backward(const Tile<const double>& before, const Tile<double>& gradient,
                std::span<double* const> sums) const override {
    if (sums[0] != nullptr) {
      alignas(64) double of_rows[kMostRows];
      HWY_DYNAMIC_DISPATCH(SumScoresDouble)(before, gradient, of_rows);
      add_to_heads(gradient, of_rows, sums[0]);
    }
    forward(gradient);
  }
  const Score* bind(const Inputs& in, passes::Arena& arena) const override {
    expect_number_a_head(in, p_.scales.name);
    const ScalesPass bound(p_, in);
    for (int64_t h = 0; h < bound.p_.scales.view.shape[0]; ++h)
      if (!std::isfinite(bound.p_.scales.get<double>(h)))
        option_error("scales: the scale of head {} is {}, expected a finite number", h, bound.p_.scales.get<double>(h));
    return arena.make(ScalesPass(bound));
  }

 private:
  Scales p_;
};
}  // namespace
}  // namespace policies

std::shared_ptr<const passes::Score> adapt_score(Scales p) { return std::make_shared<policies::ScalesPass>(p); }
}  // namespace qkv
#endif
