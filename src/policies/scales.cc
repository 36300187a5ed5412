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
namespace {

/// scale {rows, padded}
template <class T> void Times(const Tile<T>& t, const T* scale) {
  ForEachVector(
      t, [&](auto d, T* at, int r, int) { hn::StoreU(hn::Mul(hn::LoadU(d, at), OfRows(d, t, scale, r)), d, at); });
}

template <class T> void Turn(const Tile<const T>&, const Tile<T>& gradient, const T* scale) { Times(gradient, scale); }

/// d score' / d scale = score
template <class T>
void SumScores(const Tile<const T>& before, const Tile<T>& gradient, KeyRange keys, const T*, T* sums) {
  SumRows(gradient, keys, sums, [&](auto d, int r, int j) {
    const auto x = hn::LoadU(d, before.values + before.at(r, j));
    const auto above = hn::LoadU(d, gradient.values + gradient.at(r, j));
    return hn::IfThenZeroElse(hn::Eq(above, hn::Zero(d)), hn::Mul(above, x));
  });
}

template <class T> constexpr HeadKernels<T> kScales{Times<T>, Turn<T>, SumScores<T>};

}  // namespace

const HeadKernels<float>* ScalesFloat() { return &kScales<float>; }
const HeadKernels<double>* ScalesDouble() { return &kScales<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace qkv {
namespace policies {
HWY_EXPORT(ScalesFloat);
HWY_EXPORT(ScalesDouble);
namespace {
class ScalesPass final : public HeadPass<ScalesPass> {
 public:
  explicit ScalesPass(Scales p) : HeadPass(detail::describe(p)), p_(p) {}
  ScalesPass(const Scales& p, const Inputs& in) : HeadPass(detail::flags<Scales>()), p_(detail::bound(p, in)) {}
  template <class T> static const HeadKernels<T>& kernels() {
    if constexpr (std::is_same_v<T, float>) return *HWY_DYNAMIC_DISPATCH(ScalesFloat)();
    else return *HWY_DYNAMIC_DISPATCH(ScalesDouble)();
  }
  template <class T> void fill(const Sites& t, T* scales) const { numbers_of_rows(p_.scales, t, scales); }
  const Score* bind(const Inputs& in, passes::Arena& arena) const override {
    expect_number_a_head(
        in, p_.scales.name, "scale", [](double x) { return std::isfinite(x); }, "a finite number");
    return arena.make(ScalesPass(p_, in));
  }

 private:
  Scales p_;
};
}  // namespace
}  // namespace policies

std::shared_ptr<const passes::Score> adapt_score(Scales p) { return std::make_shared<policies::ScalesPass>(p); }
}  // namespace qkv
#endif
