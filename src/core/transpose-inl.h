// Four rows of floats into columns of four; compiled once an instruction set.
#if defined(QKV_CORE_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CORE_TRANSPOSE_INL_H_
#undef QKV_CORE_TRANSPOSE_INL_H_
#else
#define QKV_CORE_TRANSPOSE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

/// Block b (128 bits) of column[i] is a[4b + i], b[4b + i], c[4b + i], e[4b + i].
template <class D, class V = hn::Vec<D>> HWY_INLINE void TransposeBlocks(D d, V a, V b, V c, V e, V (&column)[4]) {
  const hn::Repartition<double, D> dd;
  const auto ab01 = hn::BitCast(dd, hn::InterleaveLower(d, a, b)), ab23 = hn::BitCast(dd, hn::InterleaveUpper(d, a, b));
  const auto ce01 = hn::BitCast(dd, hn::InterleaveLower(d, c, e)), ce23 = hn::BitCast(dd, hn::InterleaveUpper(d, c, e));
  column[0] = hn::BitCast(d, hn::InterleaveLower(dd, ab01, ce01));
  column[1] = hn::BitCast(d, hn::InterleaveUpper(dd, ab01, ce01));
  column[2] = hn::BitCast(d, hn::InterleaveLower(dd, ab23, ce23));
  column[3] = hn::BitCast(d, hn::InterleaveUpper(dd, ab23, ce23));
}

/// Block b goes to dst + 4 b step.
template <class D> HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, float* dst, int64_t step) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    hn::StoreU(v, d, dst);
  } else {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, v), dst, step);
    StoreBlocks(half, hn::UpperHalf(half, v), dst + int64_t(hn::MaxLanes(half)) * step, step);
  }
}

/// dst[c * dst_stride + r] = src[r * src_stride + c] * factor for four rows and as many columns as D has lanes.
template <class D>
HWY_INLINE void TransposeFourRows(D d, const float* src, int64_t src_stride, hn::Vec<D> factor, float* dst,
                                  int64_t dst_stride) {
  hn::Vec<D> column[4];
  TransposeBlocks(d, hn::Mul(hn::LoadU(d, src), factor), hn::Mul(hn::LoadU(d, src + src_stride), factor),
                  hn::Mul(hn::LoadU(d, src + 2 * src_stride), factor),
                  hn::Mul(hn::LoadU(d, src + 3 * src_stride), factor), column);
  for (int i = 0; i < 4; ++i) StoreBlocks(d, column[i], dst + i * dst_stride, dst_stride);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();
#endif
