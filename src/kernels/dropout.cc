// dropout_keeps() for many keys of one query. See kernels.h.
#include "qkv/dropout.h"
#include "core/targets.h"
#include "kernels/kernels.h"
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
void KeepRows(const Draws& d, int words, uint64_t* keep) {
  for (int r = 0; r < d.rows; ++r)
    for (int w = 0; w < words; ++w, ++keep) {
      *keep = 0;
      for (int j = 0; j < 64; ++j) {
        const Site at{d.batch, d.head[r], 0, 0, d.query[r], d.key + 64 * w + j};
        *keep |= uint64_t{dropout_keeps(d.seed, d.threshold, at)} << j;
      }
    }
}
#else
using D32 = hn::ScalableTag<uint32_t>;
using D64 = hn::ScalableTag<uint64_t>;
using V32 = hn::Vec<D32>;

constexpr int kKeys = 64;  // of a word
alignas(64) constexpr uint64_t kSteps[8] = {0, 1, 2, 3, 4, 5, 6, 7};

/// philox() for the counters first[i] to first[i] + Lanes(D64) of kChains chains, which wait for each other's products; each in
/// the even 32-bit lanes.
template <int kChains>
HWY_INLINE void Philox(const uint32_t (&first)[kChains], Site at, uint64_t seed, V32 (&x)[kChains][4]) {
  const D32 d;
  const D64 d64;
#pragma GCC unroll 4
  for (int i = 0; i < kChains; ++i) {
    x[i][0] = hn::BitCast(d, hn::Add(hn::Load(d64, kSteps), hn::Set(d64, uint64_t{first[i]})));
    x[i][1] = hn::Set(d, uint32_t(at.query));
    x[i][2] = hn::Set(d, uint32_t(at.head));
    x[i][3] = hn::Set(d, uint32_t(at.batch));
  }
  const auto m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  auto k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
      const auto a = hn::MulEven(x[i][0], m0), b = hn::MulEven(x[i][2], m1);
      const auto a_high = hn::BitCast(d, hn::ShiftRight<32>(a)), b_high = hn::BitCast(d, hn::ShiftRight<32>(b));
      x[i][0] = hn::Xor(hn::Xor(b_high, x[i][1]), hn::Set(d, k0));
      x[i][1] = hn::BitCast(d, b);
      x[i][2] = hn::Xor(hn::Xor(a_high, x[i][3]), hn::Set(d, k1));
      x[i][3] = hn::BitCast(d, a);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

/// Even lanes of two vectors, one behind the other in 64 bits.
HWY_INLINE hn::Vec<D64> Pair(V32 low, V32 high) {
  const D64 d;
  return hn::Or(hn::And(hn::BitCast(d, low), hn::Set(d, uint64_t{0xFFFFFFFF})),
                hn::ShiftLeft<32>(hn::BitCast(d, high)));
}

/// The 16 bits of each of kKeys * kWords keys. Four vectors of counters at a time, where there are so many.
template <int kWords> HWY_INLINE void Draw(Site at, uint64_t seed, uint16_t* bits) {
  const D64 d;
  constexpr int kCounters = kWords * kKeys / 8;
  constexpr int kAtOnce = int(hn::MaxLanes(d)), kChains = kCounters / kAtOnce < 4 ? kCounters / kAtOnce : 4;
  for (int c = 0; c < kCounters; c += kChains * kAtOnce) {
    uint32_t first[kChains];
    for (int i = 0; i < kChains; ++i) first[i] = uint32_t(at.key) / 8 + uint32_t(c + i * kAtOnce);
    V32 x[kChains][4];
    Philox(first, at, seed, x);
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i)
      hn::StoreInterleaved2(Pair(x[i][0], x[i][1]), Pair(x[i][2], x[i][3]), d,
                            reinterpret_cast<uint64_t*>(bits + 8 * (c + i * kAtOnce)));
  }
}

template <int kWords> HWY_INLINE void KeepWords(uint64_t seed, uint64_t threshold, Site at, uint64_t* keep) {
  const hn::ScalableTag<uint16_t> d;
  const int n = int(hn::Lanes(d));
  const auto high = hn::Set(d, uint16_t(threshold >> 16));
  HWY_ALIGN uint16_t bits[kWords * kKeys];
  Draw<kWords>(at, seed, bits);
  auto* bytes = reinterpret_cast<uint8_t*>(keep);
  auto equal = hn::Zero(d);
  for (int j = 0; j < kWords * kKeys; j += n) {
    const auto x = hn::Load(d, bits + j);
    hn::StoreMaskBits(d, hn::Gt(x, high), bytes + j / 8);
    equal = hn::Or(equal, hn::VecFromMask(d, hn::Eq(x, high)));
  }
  if (hn::AllTrue(d, hn::Eq(equal, hn::Zero(d)))) return;
  for (int j = 0; j < kWords * kKeys; ++j) {  // of one draw in 500
    Site one = at;
    one.key += j;
    if (bits[j] == uint16_t(threshold >> 16))
      keep[j / kKeys] |= uint64_t{dropout_keeps(seed, threshold, one)} << (j % kKeys);
  }
}

void KeepRows(const Draws& draws, int words, uint64_t* keep) {
  if (draws.threshold == 0 || draws.threshold >> 32 != 0) {
    for (int64_t n = 0; n < int64_t{draws.rows} * words; ++n) keep[n] = draws.threshold == 0 ? ~uint64_t{0} : 0;
    return;
  }
  for (int r = 0; r < draws.rows; ++r) {
    Site at{draws.batch, draws.head[r], 0, 0, draws.query[r], draws.key};
    int w = 0;
    for (; w + 2 <= words; w += 2, at.key += 2 * kKeys, keep += 2) KeepWords<2>(draws.seed, draws.threshold, at, keep);
    if (w < words) KeepWords<1>(draws.seed, draws.threshold, at, keep++);
  }
}
#endif

}  // namespace

const DropoutKernel* Dropout() {
  static constexpr DropoutKernel kKeep = KeepRows;
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
