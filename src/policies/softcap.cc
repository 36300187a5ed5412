// score' = cap * tanh(score / cap), with vectors.
#include "core/targets.h"
#include "policies/per_head.h"
#include "qkv/policies.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "policies/softcap.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "policies/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::policies {
namespace HWY_NAMESPACE {
namespace {

/// cap {rows, padded}
template <class T> void Cap(const Tile<T>& t, const T* cap) {
  ForEachVector(t, [&](auto d, T* at, int r, int) {
    const auto c = OfRows(d, t, cap, r);
    hn::StoreU(hn::Mul(hn::Tanh(d, hn::Div(hn::LoadU(d, at), c)), c), d, at);
  });
}

/// What is left of the slope: d cap tanh(x / cap) / dx = 1 - tanh(x / cap)^2.
template <class D> HWY_INLINE hn::Vec<D> Slope(D d, hn::Vec<D> tanh) {
  return hn::NegMulAdd(tanh, tanh, hn::Set(d, hn::TFromD<D>(1)));
}

template <class T> void Turn(const Tile<const T>& before, const Tile<T>& gradient, const T* cap) {
  ForEachVector(gradient, [&](auto d, T* at, int r, int j) {
    const auto x = hn::LoadU(d, before.values + before.at(r, j)), above = hn::LoadU(d, at);
    const auto slope = Slope(d, hn::Tanh(d, hn::Div(x, OfRows(d, gradient, cap, r))));
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(above, hn::Zero(d)), hn::Mul(above, slope)), d, at);
  });
}

/// tanh(x) - x (1 - tanh(x)^2). Both parts are about x where x is small, so there its series is taken: that of tanh, sum of
/// a[n] x^(2n + 1) (DLMF 4.33.3), gives sum of -2n a[n] x^(2n + 1).
template <class D> HWY_INLINE hn::Vec<D> ByCap(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  constexpr double kSeries[] = {2. / 3,
                                -8. / 15,
                                34. / 105,
                                -496. / 2835,
                                13820. / 155925,
                                -262128. / 6081075,
                                13013966. / 638512875,
                                -102473312. / 10854718875,
                                7989500916. / 1856156927625,
                                -377769321680. / 194896477400625};
  const auto square = hn::Mul(x, x);
  auto series = hn::Zero(d);
  for (int n = 9; n >= 0; --n) series = hn::MulAdd(series, square, hn::Set(d, T(kSeries[n])));
  const auto tanh = hn::Tanh(d, x);
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, T(0.25))), hn::Mul(series, hn::Mul(square, x)),
                        hn::NegMulAdd(x, Slope(d, tanh), tanh));
}

/// d cap tanh(x / cap) / d cap
template <class T>
void SumCaps(const Tile<const T>& before, const Tile<T>& gradient, KeyRange keys, const T* cap, T* sums) {
  SumRows(gradient, keys, sums, [&](auto d, int r, int j) {
    const auto x = hn::Div(hn::LoadU(d, before.values + before.at(r, j)), OfRows(d, gradient, cap, r));
    const auto above = hn::LoadU(d, gradient.values + gradient.at(r, j));
    return hn::IfThenZeroElse(hn::Eq(above, hn::Zero(d)), hn::Mul(above, ByCap(d, x)));
  });
}

template <class T> constexpr HeadKernels<T> kCap{Cap<T>, Turn<T>, SumCaps<T>};

}  // namespace

const HeadKernels<float>* CapFloat() { return &kCap<float>; }
const HeadKernels<double>* CapDouble() { return &kCap<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace qkv {
namespace policies {
HWY_EXPORT(CapFloat);
HWY_EXPORT(CapDouble);
namespace {

template <class P> class CapPass : public HeadPass<P> {
 public:
  using HeadPass<P>::HeadPass;
  template <class T> static const HeadKernels<T>& kernels() {
    if constexpr (std::is_same_v<T, float>) return *HWY_DYNAMIC_DISPATCH(CapFloat)();
    else return *HWY_DYNAMIC_DISPATCH(CapDouble)();
  }
};

class SoftCapPass final : public CapPass<SoftCapPass> {
 public:
  explicit SoftCapPass(SoftCap p) : CapPass(detail::describe(p)), cap_(p.cap) {}
  template <class T> void fill(const Sites&, T* caps) const { std::fill_n(caps, kMostRows, T(cap_)); }
  const Score* bind(const Inputs&, passes::Arena&) const override { return this; }

 private:
  double cap_;
};

class SoftCapsPass final : public CapPass<SoftCapsPass> {
 public:
  explicit SoftCapsPass(SoftCaps p) : CapPass(detail::describe(p)), p_(p) {}
  SoftCapsPass(const SoftCaps& p, const Inputs& in) : CapPass(detail::flags<SoftCaps>()), p_(detail::bound(p, in)) {}
  template <class T> void fill(const Sites& t, T* caps) const { numbers_of_rows(p_.caps, t, caps); }
  const Score* bind(const Inputs& in, passes::Arena& arena) const override {
    expect_number_a_head(
        in, p_.caps.name, "cap", [](double x) { return x > 0; }, "a number above 0");
    return arena.make(SoftCapsPass(p_, in));
  }

 private:
  SoftCaps p_;
};
}  // namespace
}  // namespace policies

std::shared_ptr<const passes::Score> adapt_score(SoftCap p) { return std::make_shared<policies::SoftCapPass>(p); }
std::shared_ptr<const passes::Score> adapt_score(SoftCaps p) { return std::make_shared<policies::SoftCapsPass>(p); }
}  // namespace qkv
#endif
