// score' = cap * tanh(score / cap), with vectors.
#include "core/format.h"
#include "core/targets.h"
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

template <class T> void Cap(const Tile<T>& t, T cap) {
  ForEachVector(t, [=](auto d, T* at, int, int) {
    const auto c = hn::Set(d, cap);
    hn::StoreU(hn::Mul(hn::Tanh(d, hn::Div(hn::LoadU(d, at), c)), c), d, at);
  });
}
/// gradient *= d cap tanh(x / cap) / dx = 1 - tanh(x / cap)^2
template <class T> void Turn(const Tile<const T>& before, const Tile<T>& gradient, T cap) {
  ForEachVector(gradient, [&](auto d, T* at, int r, int j) {
    const auto x = hn::LoadU(d, before.values + before.at(r, j)), one = hn::Set(d, T(1));
    const auto t = hn::Tanh(d, hn::Div(x, hn::Set(d, cap)));
    const auto above = hn::LoadU(d, at);
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(above, hn::Zero(d)), hn::Mul(above, hn::NegMulAdd(t, t, one))), d, at);
  });
}
void TurnFloat(const Tile<const float>& before, const Tile<float>& gradient, float cap) { Turn(before, gradient, cap); }
void TurnDouble(const Tile<const double>& before, const Tile<double>& gradient, double cap) {
  Turn(before, gradient, cap);
}
void CapFloat(const Tile<float>& t, float cap) { Cap(t, cap); }
void CapDouble(const Tile<double>& t, double cap) { Cap(t, cap); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace qkv {
namespace policies {
HWY_EXPORT(CapFloat);
HWY_EXPORT(CapDouble);
HWY_EXPORT(TurnFloat);
HWY_EXPORT(TurnDouble);
namespace {
class SoftCapPass final : public passes::Score {
 public:
  explicit SoftCapPass(SoftCap p) : Score(detail::describe(p)), cap_(p.cap) {}
  void forward(const Tile<float>& t) const override { HWY_DYNAMIC_DISPATCH(CapFloat)(t, float(cap_)); }
  void forward(const Tile<double>& t) const override { HWY_DYNAMIC_DISPATCH(CapDouble)(t, cap_); }
  void backward(const Tile<const float>& before, const Tile<float>& gradient,
                std::span<double* const>) const override {
    HWY_DYNAMIC_DISPATCH(TurnFloat)(before, gradient, float(cap_));
  }
  void backward(const Tile<const double>& before, const Tile<double>& gradient,
                std::span<double* const>) const override {
    HWY_DYNAMIC_DISPATCH(TurnDouble)(before, gradient, cap_);
  }
  const Score* bind(const Inputs&, passes::Arena&) const override { return this; }

 private:
  double cap_;
};
}  // namespace
}  // namespace policies

std::shared_ptr<const passes::Score> adapt_score(SoftCap p) { return std::make_shared<policies::SoftCapPass>(p); }
}  // namespace qkv
#endif
