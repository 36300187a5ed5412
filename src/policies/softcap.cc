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
namespace {
class SoftCapPass final : public passes::Score {
 public:
  explicit SoftCapPass(SoftCap p) : Score(detail::describe(p)), cap_(p.cap) {}
  void forward(const Tile<float>& t) const override { HWY_DYNAMIC_DISPATCH(CapFloat)(t, float(cap_)); }
  void forward(const Tile<double>& t) const override { HWY_DYNAMIC_DISPATCH(CapDouble)(t, cap_); }
  const Score* bind(const Inputs&, passes::Arena&) const override { return this; }

 private:
  double cap_;
};
}  // namespace
}  // namespace policies

std::shared_ptr<const passes::Score> adapt_score(SoftCap p) { return std::make_shared<policies::SoftCapPass>(p); }
}  // namespace qkv
#endif
