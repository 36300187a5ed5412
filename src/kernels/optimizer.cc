// See optimizer.h.
#include "kernels/optimizer.h"

#include "core/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optimizer.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/span-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

template <bool kMomentum, class T>
void SgdStep(T* parameters, const T* gradient, T* velocity, int64_t n, const SgdFactors<T>& f) {
  const Full<T> d;
  const auto scale = hn::Set(d, f.gradient), rate = hn::Set(d, f.rate), decay = hn::Set(d, f.decay);
  const auto momentum = hn::Set(d, f.momentum), undamped = hn::Set(d, f.undamped);
  const bool first = f.first, nesterov = f.nesterov;
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    const auto p = lanes.load(d, parameters + i);
    auto g = hn::MulAdd(p, decay, hn::Mul(lanes.load(d, gradient + i), scale));
    if constexpr (kMomentum) {
      const auto v = first ? g : hn::MulAdd(lanes.load(d, velocity + i), momentum, hn::Mul(g, undamped));
      lanes.store(d, v, velocity + i);
      g = nesterov ? hn::MulAdd(v, momentum, g) : v;
    }
    lanes.store(d, hn::NegMulAdd(g, rate, p), parameters + i);
  });
}

template <class T> void Sgd(T* parameters, const T* gradient, T* velocity, int64_t n, const SgdFactors<T>& f) {
  if (velocity) SgdStep<true>(parameters, gradient, velocity, n, f);
  else SgdStep<false>(parameters, gradient, velocity, n, f);
}

template <class T> void Adam(T* parameters, const T* gradient, T* m, T* v, int64_t n, const AdamFactors<T>& f) {
  const Full<T> d;
  const auto scale = hn::Set(d, f.gradient), decay = hn::Set(d, f.decay), shrink = hn::Set(d, f.shrink);
  const auto rest1 = hn::Set(d, f.rest1), beta2 = hn::Set(d, f.beta2), rest2 = hn::Set(d, f.rest2);
  const auto size = hn::Set(d, f.step_size), correction = hn::Set(d, f.inverse_correction);
  const auto epsilon = hn::Set(d, f.epsilon);
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    const auto p = lanes.load(d, parameters + i);
    const auto g = hn::MulAdd(p, decay, hn::Mul(lanes.load(d, gradient + i), scale));
    const auto old_m = lanes.load(d, m + i);
    const auto new_m = hn::MulAdd(hn::Sub(g, old_m), rest1, old_m);
    const auto new_v = hn::MulAdd(hn::Mul(g, rest2), g, hn::Mul(lanes.load(d, v + i), beta2));
    lanes.store(d, new_m, m + i);
    lanes.store(d, new_v, v + i);
    const auto below = hn::MulAdd(hn::Sqrt(new_v), correction, epsilon);
    lanes.store(d, hn::NegMulAdd(size, hn::Div(new_m, below), hn::Mul(p, shrink)), parameters + i);
  });
}

template <class T> const OptimizerKernels<T>* Table() {
  static constexpr OptimizerKernels<T> kTable{Sgd<T>, Adam<T>};
  return &kTable;
}

}  // namespace

const OptimizerKernels<float>* OptimizerFloat() { return Table<float>(); }
const OptimizerKernels<double>* OptimizerDouble() { return Table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(OptimizerFloat);
HWY_EXPORT(OptimizerDouble);
template <> const OptimizerKernels<float>& optimizer_kernels<float>() {
  return *HWY_DYNAMIC_DISPATCH(OptimizerFloat)();
}
template <> const OptimizerKernels<double>& optimizer_kernels<double>() {
  return *HWY_DYNAMIC_DISPATCH(OptimizerDouble)();
}
}  // namespace qkv::kernels
#endif
