// Vector functions that several kernels share; compiled once an instruction set. No include guard of the usual kind.
#if defined(QKV_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_KERNELS_MATH_INL_H_
#undef QKV_KERNELS_MATH_INL_H_
#else
#define QKV_KERNELS_MATH_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T> using Full = hn::ScalableTag<T>;
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON;  // 32 of them

/// e^x for x <= 0: x log2 e = n + f with n an integer and |f| <= 1/2, 2^f by a polynomial, 2^n by its bits. Exactly 1 at 0,
/// exactly +0 where the result would be subnormal: from about -87.3 down (-708.4 for double). NaN stays NaN.
/// The polynomials are minimax fits of (2^f - 1) / f: relative error 2e-9 before rounding for float, 2e-17 for double.
template <class D> HWY_INLINE hn::Vec<D> Exp(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const hn::RebindToUnsigned<D> du;
  constexpr bool kFloat = sizeof(T) == 4;
  constexpr int kBias = kFloat ? 127 : 1023, kMantissa = kFloat ? 23 : 52;
  // Added to x log2 e, it leaves n + bias in the lowest bits of the sum: its own last bit weighs 1.
  const auto magic = hn::Set(d, T((kFloat ? 12582912.0 : 6755399441055744.0) + kBias));
  const auto log2_e = hn::Set(d, T(1.4426950408889634074));
  const auto vanishes = hn::Lt(x, hn::Set(d, T((1 - kBias) * 0.69314718055994530942)));
  const auto shifted = hn::MulAdd(x, log2_e, magic);
  const auto f = hn::MulSub(x, log2_e, hn::Sub(shifted, magic));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<kMantissa>(hn::BitCast(du, shifted)));
  hn::Vec<D> y;
  if constexpr (kFloat) {
    y = hn::Set(d, T(0x1.41fbbcp-13));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.5f3e52p-10)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.3b2d4cp-7)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.c6aee8p-5)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.ebfbdcp-3)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.62e430p-1)));
  } else {
    y = hn::Set(d, T(0x1.e9d3fe3952179p-32));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.e6063f7217bc6p-28)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.b524fae627834p-24)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.62bfd47773353p-20)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.ffcbfc670dcd4p-17)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.430913096fd9fp-13)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.5d87fe78a5276p-10)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.3b2ab6fba1ddap-7)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.c6b08d704a0c2p-5)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.ebfbdff82c598p-3)));
    y = hn::MulAdd(y, f, hn::Set(d, T(0x1.62e42fefa39efp-1)));
  }
  y = hn::MulAdd(y, f, hn::Set(d, T(1)));
  return hn::IfThenZeroElse(vanishes, hn::Mul(y, scale));
}

template <class D> HWY_INLINE hn::Vec<D> MinusInf(D d) {
  using T = hn::TFromD<D>;
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::Set(du, sizeof(T) == 4 ? hn::TFromD<decltype(du)>(0xFF800000u)
                                                   : hn::TFromD<decltype(du)>(0xFFF0000000000000ull)));
}

/// x, and 0 instead of a subnormal number: products with those take a hundred times as long, and they are less than any
/// rounding error of what they are summed with.
template <class D> HWY_INLINE hn::Vec<D> Flush(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto least = hn::Set(d, sizeof(T) == 4 ? T(0x1p-126) : T(0x1p-1022));
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(x), least), x);
}

/// -inf maxima would give inf - inf: rows that saw nothing yet subtract 0.
template <class D> HWY_INLINE hn::Vec<D> FiniteMax(D d, hn::Vec<D> m) {
  return hn::IfThenZeroElse(hn::Eq(m, MinusInf(d)), m);
}

/// Lanes [first, first + Lanes) of the rows that see a key.
template <class D> HWY_INLINE hn::Mask<D> RowMask(D d, uint64_t word, size_t first) {
  const uint64_t bits = word >> first;
  uint8_t bytes[8];
  memcpy(bytes, &bits, 8);
  return hn::LoadMaskBits(d, bytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();
#endif
