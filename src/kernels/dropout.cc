// dropout_keeps() for many keys of one query. See kernels.h.
#include "core/targets.h"
#include "kernels/kernels.h"
#include "qkv/dropout.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dropout.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR
void Keep(uint64_t seed, uint64_t threshold, Site at, int words, uint64_t* keep) {
  for (int w = 0; w < words; ++w) {
    keep[w] = 0;
    for (int j = 0; j < 64; ++j, ++at.key) keep[w] |= uint64_t{dropout_keeps(seed, threshold, at)} << j;
  }
}
#else
using D32 = hn::ScalableTag<uint32_t>;
using D64 = hn::ScalableTag<uint64_t>;
using V32 = hn::Vec<D32>;

/// philox() for as many counters as a vector has 64-bit lanes, from `first` on; each in the even 32-bit lanes.
HWY_INLINE void Philox(uint32_t first, Site at, uint64_t seed, V32 (&x)[4]) {
  const D32 d;
  const D64 d64;
  x[0] = hn::BitCast(d, hn::Iota(d64, uint64_t{first}));
  x[1] = hn::Set(d, uint32_t(at.query));
  x[2] = hn::Set(d, uint32_t(at.head));
  x[3] = hn::Set(d, uint32_t(at.batch));
  const auto m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  auto k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto a = hn::MulEven(x[0], m0), b = hn::MulEven(x[2], m1);
    const auto a_high = hn::BitCast(d, hn::ShiftRight<32>(a)), b_high = hn::BitCast(d, hn::ShiftRight<32>(b));
    x[0] = hn::Xor(hn::Xor(b_high, x[1]), hn::Set(d, k0));
    x[1] = hn::BitCast(d, b);
    x[2] = hn::Xor(hn::Xor(a_high, x[3]), hn::Set(d, k1));
    x[3] = hn::BitCast(d, a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

/// Even lanes of two vectors, one behind the other in 64 bits.
HWY_INLINE hn::Vec<D64> Pair(V32 low, V32 high) {
  const D64 d;
  return hn::Or(hn::And(hn::BitCast(d, low), hn::Set(d, uint64_t{0xFFFFFFFF})), hn::ShiftLeft<32>(hn::BitCast(d, high)));
}

constexpr int kKeys = 64;  // of a word

/// The 16 bits of each of kKeys keys.
HWY_INLINE void Draw(uint32_t first_counter, Site at, uint64_t seed, uint16_t* bits) {
  const D64 d;
  const int n = int(hn::Lanes(d));
  for (int c = 0; c < kKeys / 8; c += n) {
    V32 x[4];
    Philox(first_counter + uint32_t(c), at, seed, x);
    hn::StoreInterleaved2(Pair(x[0], x[1]), Pair(x[2], x[3]), d, reinterpret_cast<uint64_t*>(bits + 8 * c));
  }
}

void Keep(uint64_t seed, uint64_t threshold, Site at, int words, uint64_t* keep) {
  const hn::ScalableTag<uint16_t> d;
  const int n = int(hn::Lanes(d));
  const auto high = hn::Set(d, uint16_t(threshold >> 16));
  for (int w = 0; w < words; ++w, at.key += kKeys) {
    if (threshold == 0 || threshold >> 32 != 0) {
      keep[w] = threshold == 0 ? ~uint64_t{0} : 0;
      continue;
    }
    HWY_ALIGN uint16_t bits[kKeys];
    Draw(uint32_t(at.key) / 8, at, seed, bits);
    uint64_t above = 0, equal = 0;
    for (int j = 0; j < kKeys; j += n) {
      const auto x = hn::Load(d, bits + j);
      uint8_t mask[8] = {};
      uint64_t part = 0;
      hn::StoreMaskBits(d, hn::Gt(x, high), mask);
      memcpy(&part, mask, 8);
      above |= part << j;
      memset(mask, 0, 8);
      hn::StoreMaskBits(d, hn::Eq(x, high), mask);
      memcpy(&part, mask, 8);
      equal |= part << j;
    }
    for (; equal != 0; equal &= equal - 1) {  // one in 65536
      Site one = at;
      one.key += __builtin_ctzll(equal);
      above |= uint64_t{dropout_keeps(seed, threshold, one)} << (one.key - at.key);
    }
    keep[w] = above;
  }
}
#endif

}  // namespace

const DropoutKernel* Dropout() {
  static constexpr DropoutKernel kKeep = Keep;
  return &kKeep;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(Dropout);
DropoutKernel dropout_kernel() { return *HWY_DYNAMIC_DISPATCH(Dropout)(); }
}  // namespace qkv::kernels
#endif
