// See activation.h.
#include "kernels/activation.h"

#include "core/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"
#include "kernels/span-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

/// f(x) and f'(x); what is not used is not computed.
template <class D> struct Point { hn::Vec<D> value, slope; };

/// x p, and 0 where p is 0: x may be infinite there.
template <class D> HWY_INLINE hn::Vec<D> Times(D d, hn::Vec<D> x, hn::Vec<D> p) {
  return hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), hn::Mul(x, p));
}

/// The smaller one, NaN where x is NaN.
template <class D> HWY_INLINE hn::Vec<D> AtMost(D, hn::Vec<D> x, hn::Vec<D> most) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return hn::IfThenElse(hn::Gt(x, most), most, x);
#else
  return hn::Min(most, x);  // the second one of a pair with a NaN on x86, NaN on Arm
#endif
}

/// For t >= 0 the normal distribution's Prob(X > t), and its density at t times sqrt(2 pi).
///   Prob(X > t) = exp(-t^2 / 2) R(t),  R(t) (t + k) = polynomial in (t - k) / (t + k)
/// as in Shepherd and Laframboise 1981; Chebyshev interpolation, relative error below 4e-9 and 3e-17 before rounding. Without
/// cancellation: what rounding t^2 costs is t^2 / 2 units, and exp(-t^2 / 2) is at hand for derivatives. NaN stays NaN.
template <class D> HWY_INLINE void Tail(D d, hn::Vec<D> t, hn::Vec<D>& above, hn::Vec<D>& density) {
  using T = hn::TFromD<D>;
  density = Exp(d, hn::Mul(hn::Mul(t, hn::Set(d, T(-0.5))), t));
  constexpr T k = sizeof(T) == 4 ? 2 : 4;
  const auto inverse = hn::Div(hn::Set(d, T(1)), hn::Add(t, hn::Set(d, k)));
  const auto y = hn::NegMulAdd(hn::Set(d, 2 * k), inverse, hn::Set(d, T(1)));
  hn::Vec<D> r;
  if constexpr (sizeof(T) == 4) {
    constexpr float kFactors[] = {-0x1.ca52ccp-15f, -0x1.2bb764p-13f, 0x1.ba75fcp-14f, 0x1.ae95aep-11f,
                                  0x1.bc34fcp-11f,  -0x1.fc730ep-10f, -0x1.b9ea26p-8f, -0x1.f06240p-12f,
                                  0x1.2cd0bcp-5f,   0x1.d7d27cp-6f,   -0x1.535bb6p-2f, 0x1.5845dcp-1f};
    r = hn::Set(d, kFactors[0]);
    for (int i = 1; i < 12; ++i) r = hn::MulAdd(r, y, hn::Set(d, kFactors[i]));
  } else {
    constexpr double kFactors[] = {
        -0x1.d02cb8b1aece5p-30, -0x1.5f156edc94ca6p-30, 0x1.14091d7a7c750p-26, 0x1.50340ce1e91e7p-26,
        -0x1.525f7cf095528p-24, -0x1.5c63c86e75642p-23, 0x1.1c4173fea8cfep-22, 0x1.13adced39cc0fp-20,
        -0x1.4f852d0cd4c1ep-21, -0x1.8d7a8a505f8afp-18, 0x1.7fa62c0d145c8p-21, 0x1.26d29b3abf3c7p-15,
        -0x1.000b3fd28b8a4p-19, -0x1.e4a441e3d3f08p-13, 0x1.17a4a08efb4f6p-13, 0x1.ab82603e47f07p-10,
        -0x1.c81719be71757p-9,  -0x1.ee276106ecb6bp-8,  0x1.eec4cc3e39776p-5,  -0x1.7dff2bff6785ap-3,
        0x1.8c6dbf2cfc388p-2,   -0x1.373e3a893c292p-1,  0x1.82b4bb8c94dcdp-1};
    r = hn::Set(d, kFactors[0]);
    for (int i = 1; i < 23; ++i) r = hn::MulAdd(r, y, hn::Set(d, kFactors[i]));
  }
  above = hn::Mul(density, hn::Mul(r, inverse));
}

/// s = 1 / (1 + e^-x) and its derivative s (1 - s), without cancellation.
template <class D> HWY_INLINE Point<D> Sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, hn::TFromD<D>(1));
  const auto e = Exp(d, hn::Neg(hn::Abs(x)));
  const auto large = hn::Div(one, hn::Add(one, e)), small = hn::Mul(e, large);
  return {hn::IfThenElse(hn::Lt(x, hn::Zero(d)), small, large), hn::Mul(small, large)};
}

struct Relu {
  template <class D> static HWY_INLINE Point<D> at(D d, hn::Vec<D> x) {
    const auto off = hn::Le(x, hn::Zero(d));  // not of a NaN, which stays
    return {hn::IfThenZeroElse(off, x), hn::IfThenZeroElse(off, hn::Set(d, hn::TFromD<D>(1)))};
  }
};

struct Gelu {
  template <class D> static HWY_INLINE Point<D> at(D d, hn::Vec<D> x) {
    using T = hn::TFromD<D>;
    // From 14 or 39 on the exponential is 0, and infinities times that would be NaN.
    const auto t = AtMost(d, hn::Abs(x), hn::Set(d, sizeof(T) == 4 ? T(14) : T(39))), zero = hn::Zero(d);
    hn::Vec<D> above, density;
    Tail(d, t, above, density);
    // x Phi(x) = max(x, 0) - t above. A NaN is in t too, so it does not matter what Max makes of it.
    const auto value = hn::NegMulAdd(t, above, hn::Max(x, zero));
    // Phi(x) + x density, which is 1 minus its number at -x.
    const auto left = hn::NegMulAdd(hn::Mul(t, hn::Set(d, T(0.39894228040143267794))), density, above);
    return {value, hn::IfThenElse(hn::Gt(x, zero), hn::Sub(hn::Set(d, T(1)), left), left)};
  }
};

struct GeluTanh {
  template <class D> static HWY_INLINE Point<D> at(D d, hn::Vec<D> x) {
    // (1 + tanh z) / 2 is the sigmoid of 2 z = x (a + b x^2).
    using T = hn::TFromD<D>;
    const auto a = hn::Set(d, T(1.5957691216057307117)), b = hn::Set(d, T(0.071354816272600248776));
    const auto square = hn::Mul(x, x);
    const auto s = Sigmoid(d, hn::Mul(x, hn::MulAdd(square, b, a)));
    const auto slope = hn::MulAdd(hn::Mul(square, b), hn::Set(d, T(3)), a);
    return {Times(d, x, s.value), hn::Add(s.value, Times(d, hn::Mul(x, slope), s.slope))};
  }
};

struct Silu {
  template <class D> static HWY_INLINE Point<D> at(D d, hn::Vec<D> x) {
    const auto s = Sigmoid(d, x);
    return {Times(d, x, s.value), hn::Add(s.value, Times(d, x, s.slope))};
  }
};

template <class F, class T> void Value(const T* x, int64_t n, T* y) {
  const Full<T> d;
  ForVectors(d, n, [=](int64_t i, auto lanes) { lanes.store(d, F::at(d, lanes.load(d, x + i)).value, y + i); });
}

template <class F, class T> void ValueAndSlope(const T* x, int64_t n, T* y, T* slope) {
  const Full<T> d;
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    const auto p = F::at(d, lanes.load(d, x + i));
    lanes.store(d, p.value, y + i);
    lanes.store(d, p.slope, slope + i);
  });
}

template <class F, class T> void Gradient(const T* x, const T* dy, int64_t n, T* dx) {
  const Full<T> d;
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    lanes.store(d, hn::Mul(lanes.load(d, dy + i), F::at(d, lanes.load(d, x + i)).slope), dx + i);
  });
}

template <class F, class T> void Gated(const T* a, const T* b, int64_t n, T* y) {
  const Full<T> d;
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    lanes.store(d, hn::Mul(F::at(d, lanes.load(d, a + i)).value, lanes.load(d, b + i)), y + i);
  });
}

template <class F, class T> void GatedGradient(const T* a, const T* b, const T* dy, int64_t n, T* da, T* db) {
  const Full<T> d;
  ForVectors(d, n, [=](int64_t i, auto lanes) {
    const auto p = F::at(d, lanes.load(d, a + i));
    const auto g = lanes.load(d, dy + i), gate = lanes.load(d, b + i);
    lanes.store(d, hn::Mul(hn::Mul(g, gate), p.slope), da + i);
    lanes.store(d, hn::Mul(g, p.value), db + i);
  });
}

template <class F, class T> constexpr ActivationKernels<T> TableOf() {
  return {Value<F, T>, ValueAndSlope<F, T>, Gradient<F, T>, Gated<F, T>, GatedGradient<F, T>};
}
template <class T> const ActivationKernels<T>* Tables() {
  static constexpr ActivationKernels<T> kTables[kFunctions] = {TableOf<Relu, T>(), TableOf<Gelu, T>(),
                                                               TableOf<GeluTanh, T>(), TableOf<Silu, T>()};
  return kTables;
}

}  // namespace

const ActivationKernels<float>* ActivationFloat() { return Tables<float>(); }
const ActivationKernels<double>* ActivationDouble() { return Tables<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(ActivationFloat);
HWY_EXPORT(ActivationDouble);
template <> const ActivationKernels<float>& activation_kernels<float>(Function f) {
  return HWY_DYNAMIC_DISPATCH(ActivationFloat)()[int(f)];
}
template <> const ActivationKernels<double>& activation_kernels<double>(Function f) {
  return HWY_DYNAMIC_DISPATCH(ActivationDouble)()[int(f)];
}
}  // namespace qkv::kernels
#endif
