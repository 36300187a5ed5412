// Sine and cosine in double, and rotations of pairs. See rotary.h.
#include "kernels/rotary.h"

#include "core/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotary.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// sin and cos of r, |r| <= pi / 4 and a little, by Taylor's series to r^17 and r^16: cut off below 2^-58.
template <class D> HWY_INLINE hn::Vec<D> SineOfRest(D d, hn::Vec<D> r) {
  const auto z = hn::Mul(r, r);
  auto y = hn::Set(d, 0x1.952c77030ad4ap-49);
  y = hn::MulAdd(y, z, hn::Set(d, -0x1.ae7f3e733b81fp-41));
  y = hn::MulAdd(y, z, hn::Set(d, 0x1.6124613a86d09p-33));
  y = hn::MulAdd(y, z, hn::Set(d, -0x1.ae64567f544e4p-26));
  y = hn::MulAdd(y, z, hn::Set(d, 0x1.71de3a556c734p-19));
  y = hn::MulAdd(y, z, hn::Set(d, -0x1.a01a01a01a01ap-13));
  y = hn::MulAdd(y, z, hn::Set(d, 0x1.1111111111111p-7));
  y = hn::MulAdd(y, z, hn::Set(d, -0x1.5555555555555p-3));
  return hn::MulAdd(hn::Mul(y, z), r, r);
}
template <class D> HWY_INLINE hn::Vec<D> CosineOfRest(D d, hn::Vec<D> r) {
  const auto z = hn::Mul(r, r);
  auto y = hn::Set(d, 0x1.ae7f3e733b81fp-45);
  y = hn::MulAdd(y, z, hn::Set(d, -0x1.93974a8c07c9dp-37));
  y = hn::MulAdd(y, z, hn::Set(d, 0x1.1eed8eff8d898p-29));
  y = hn::MulAdd(y, z, hn::Set(d, -0x1.27e4fb7789f5cp-22));
  y = hn::MulAdd(y, z, hn::Set(d, 0x1.a01a01a01a01ap-16));
  y = hn::MulAdd(y, z, hn::Set(d, -0x1.6c16c16c16c17p-10));
  y = hn::MulAdd(y, z, hn::Set(d, 0x1.5555555555555p-5));
  // 1 - z / 2 with what its rounding loses.
  const auto one = hn::Set(d, 1.0), half = hn::Mul(z, hn::Set(d, 0.5)), near = hn::Sub(one, half);
  return hn::Add(near, hn::MulAdd(hn::Mul(y, z), z, hn::Sub(hn::Sub(one, near), half)));
}

/// |x| <= kMostAngle. x = q pi / 2 + rest, pi / 2 in parts of 22 bits: q has at most 31, so the first three products are exact
/// with and without fused multiply-add, and so are the first two differences (Cody, Waite 1980).
template <class D> HWY_INLINE void SineAndCosine(D d, hn::Vec<D> x, hn::Vec<D>& sine, hn::Vec<D>& cosine) {
  const hn::RebindToUnsigned<D> du;
  const auto magic = hn::Set(d, 6755399441055744.0);  // added, it leaves an integer in the lowest bits
  const auto shifted = hn::Add(hn::Mul(x, hn::Set(d, 0x1.45f306dc9c883p-1)), magic);
  const auto q = hn::Sub(shifted, magic);
  auto r = hn::NegMulAdd(q, hn::Set(d, 0x1.921fb00000000p+0), x);
  r = hn::NegMulAdd(q, hn::Set(d, 0x1.5110b00000000p-22), r);
  r = hn::NegMulAdd(q, hn::Set(d, 0x1.1846980000000p-44), r);
  r = hn::NegMulAdd(q, hn::Set(d, 0x1.3198a2e037073p-69), r);

  const auto quadrant = hn::BitCast(du, shifted);
  const auto one = hn::Set(du, uint64_t{1}), two = hn::Set(du, uint64_t{2});
  const auto odd = hn::MaskFromVec(hn::BitCast(d, hn::Sub(hn::Zero(du), hn::And(quadrant, one))));
  const auto s = SineOfRest(d, r), c = CosineOfRest(d, r);
  const auto sine_sign = hn::ShiftLeft<62>(hn::And(quadrant, two));
  const auto cosine_sign = hn::ShiftLeft<62>(hn::And(hn::Add(quadrant, one), two));
  sine = hn::Xor(hn::IfThenElse(odd, c, s), hn::BitCast(d, sine_sign));
  cosine = hn::Xor(hn::IfThenElse(odd, s, c), hn::BitCast(d, cosine_sign));
}

template <class D> HWY_INLINE void StoreAs(D d, hn::Vec<D> x, double* to) { hn::StoreU(x, d, to); }
template <class D> HWY_INLINE void StoreAs(D, hn::Vec<D> x, float* to) {
  const hn::Rebind<float, D> narrow;
  hn::StoreU(hn::DemoteTo(narrow, x), narrow, to);
}

template <class T, class D>
HWY_INLINE void AnglesFrom(D d, int64_t& i, const double* frequency, int64_t n, double position, double factor,
                           T* cosine, T* sine) {
  const auto lanes = int64_t(hn::Lanes(d));
  const auto at = hn::Set(d, position), times = hn::Set(d, factor);
  for (; i + lanes <= n; i += lanes) {
    hn::Vec<D> s, c;
    SineAndCosine(d, hn::Mul(at, hn::LoadU(d, frequency + i)), s, c);
    StoreAs(d, hn::Mul(c, times), cosine + i);
    StoreAs(d, hn::Mul(s, times), sine + i);
  }
}
template <class T> void Angles(const double* frequency, int64_t n, double position, double factor, T* cosine, T* sine) {
  int64_t i = 0;
  AnglesFrom(hn::ScalableTag<double>(), i, frequency, n, position, factor, cosine, sine);
  AnglesFrom(hn::CappedTag<double, 1>(), i, frequency, n, position, factor, cosine, sine);
}

template <class D> struct Pair { hn::Vec<D> first, second; };
template <class D> HWY_INLINE Pair<D> Rotated(Pair<D> x, hn::Vec<D> cosine, hn::Vec<D> sine) {
  return {hn::MulSub(x.first, cosine, hn::Mul(x.second, sine)), hn::MulAdd(x.second, cosine, hn::Mul(x.first, sine))};
}

template <class T, class D>
HWY_INLINE void HalvesFrom(D d, int64_t& i, const T* x, const T* cosine, const T* sine, int64_t n, int64_t far, T* y) {
  const auto lanes = int64_t(hn::Lanes(d));
  for (; i + lanes <= n; i += lanes) {
    const Pair<D> from{hn::LoadU(d, x + i), hn::LoadU(d, x + far + i)};
    const Pair<D> to = Rotated<D>(from, hn::LoadU(d, cosine + i), hn::LoadU(d, sine + i));
    hn::StoreU(to.first, d, y + i);
    hn::StoreU(to.second, d, y + far + i);
  }
}
template <class T> void RotateHalves(const T* x, const T* cosine, const T* sine, int64_t n, int64_t far, T* y) {
  int64_t i = 0;
  HalvesFrom(hn::ScalableTag<T>(), i, x, cosine, sine, n, far, y);
  HalvesFrom(hn::CappedTag<T, 1>(), i, x, cosine, sine, n, far, y);
}

template <class T> void RotateNeighbours(const T* x, const T* cosine, const T* sine, int64_t n, T* y) {
  using D = hn::ScalableTag<T>;
  int64_t i = 0;
  const D d;
  const auto lanes = int64_t(hn::Lanes(d));
  for (; i + lanes <= n; i += lanes) {
    Pair<D> from;
    hn::LoadInterleaved2(d, x + 2 * i, from.first, from.second);
    const Pair<D> to = Rotated<D>(from, hn::LoadU(d, cosine + i), hn::LoadU(d, sine + i));
    hn::StoreInterleaved2(to.first, to.second, d, y + 2 * i);
  }
  for (; i < n; ++i) {
    int64_t one = 0;
    HalvesFrom(hn::CappedTag<T, 1>(), one, x + 2 * i, cosine + i, sine + i, 1, 1, y + 2 * i);
  }
}

}  // namespace

template <class T> const RotaryKernels<T>* Table() {
  static constexpr RotaryKernels<T> kTable{Angles<T>, RotateHalves<T>, RotateNeighbours<T>};
  return &kTable;
}
const RotaryKernels<float>* RotaryFloat() { return Table<float>(); }
const RotaryKernels<double>* RotaryDouble() { return Table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(RotaryFloat);
HWY_EXPORT(RotaryDouble);
template <> const RotaryKernels<float>& rotary_kernels<float>() { return *HWY_DYNAMIC_DISPATCH(RotaryFloat)(); }
template <> const RotaryKernels<double>& rotary_kernels<double>() { return *HWY_DYNAMIC_DISPATCH(RotaryDouble)(); }
}  // namespace qkv::kernels
#endif
