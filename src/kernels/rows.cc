// Rows between storage and arithmetic: widening, narrowing, transposing. See kernels.h.
#include <algorithm>

#include "core/targets.h"
#include "kernels/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "core/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float Widen(float16 x) { return x; }
HWY_INLINE float Widen(bfloat16 x) { return x; }
HWY_INLINE float Widen(float x) { return x; }
HWY_INLINE double Widen(double x) { return x; }

/// The bits of a vector of bfloat16 or float16, in 32 bits each, as floats. Exact; NaN payloads are kept.
template <class E, class D> HWY_INLINE hn::Vec<D> WidenBits(D d, hn::Vec<hn::RebindToUnsigned<D>> bits) {
  const hn::RebindToUnsigned<D> du;
  if constexpr (std::is_same_v<E, bfloat16>) {
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  } else {
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFu));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(du, 112u << 23));
    const auto special = hn::Or(shifted, hn::Set(du, 0x7F800000u));
    // Subnormals are multiples of 2^-24; the integer converts exactly.
    const auto tiny = hn::BitCast(
        du, hn::Mul(hn::ConvertTo(d, hn::BitCast(hn::RebindToSigned<D>(), magnitude)), hn::Set(d, 0x1p-24f)));
    const hn::RebindToSigned<D> di;
    const auto m = hn::BitCast(di, magnitude);
    const auto is_tiny = hn::RebindMask(du, hn::Lt(m, hn::Set(di, 0x0400)));
    const auto is_special = hn::RebindMask(du, hn::Gt(m, hn::Set(di, 0x7BFF)));
    return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, hn::IfThenElse(is_tiny, tiny, normal))));
  }
}

template <class E, class T> HWY_INLINE void LoadRow(const E* src, int columns, T* dst) {
  int c = 0;
  if constexpr (sizeof(E) == 2) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<uint16_t, decltype(d)> d16;
    const int n = int(hn::Lanes(d));
    for (; c + n <= columns; c += n) {
      const auto bits = hn::PromoteTo(hn::RebindToUnsigned<decltype(d)>(),
                                      hn::LoadU(d16, reinterpret_cast<const uint16_t*>(src) + c));
      hn::StoreU(WidenBits<E>(d, bits), d, dst + c);
    }
  }
  for (; c < columns; ++c) dst[c] = Widen(src[c]);
}

/// The reverse, as float16(float) and bfloat16(float) do it: to nearest, ties to even, NaN stays NaN. 16 bits in each of 32.
template <class E, class D> HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> NarrowBits(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto all = hn::BitCast(du, x), one = hn::Set(du, 1u);
  const auto magnitude = hn::And(all, hn::Set(du, 0x7FFFFFFFu));
  const auto m = hn::BitCast(di, magnitude);
  const auto is_nan = hn::RebindMask(du, hn::Gt(m, hn::Set(di, 0x7F800000)));
  if constexpr (std::is_same_v<E, bfloat16>) {
    const auto odd = hn::And(hn::ShiftRight<16>(all), one);
    const auto near = hn::ShiftRight<16>(hn::Add(all, hn::Add(odd, hn::Set(du, 0x7FFFu))));
    return hn::IfThenElse(is_nan, hn::Or(hn::ShiftRight<16>(all), hn::Set(du, 0x40u)), near);
  } else {
    const auto sign = hn::And(hn::ShiftRight<16>(all), hn::Set(du, 0x8000u));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), one);
    const auto rebased = hn::Sub(magnitude, hn::Set(du, (112u << 23) - 0xFFFu));
    const auto normal = hn::ShiftRight<13>(hn::Add(rebased, odd));
    // Below 2^-14: a multiple of 2^-24, the weight of the last bit of the sum.
    const auto shifted = hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f)));
    const auto tiny = hn::Sub(shifted, hn::Set(du, 0x3F000000u));
    const auto nan = hn::Or(hn::Set(du, 0x7E00u), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FFu)));
    const auto is_tiny = hn::RebindMask(du, hn::Lt(m, hn::Set(di, 0x38800000)));
    const auto is_large = hn::RebindMask(du, hn::Gt(m, hn::Set(di, 0x477FEFFF)));  // 65520 and above: infinity
    const auto finite = hn::IfThenElse(is_large, hn::Set(du, 0x7C00u), hn::IfThenElse(is_tiny, tiny, normal));
    return hn::Or(sign, hn::IfThenElse(is_nan, nan, finite));
  }
}

template <class E, class T> HWY_INLINE void StoreRow(const T* src, int columns, E* dst) {
  int c = 0;
  if constexpr (sizeof(E) == 2 && sizeof(T) == 4) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<uint16_t, decltype(d)> d16;
    const int n = int(hn::Lanes(d));
    for (; c + n <= columns; c += n) {
      const auto bits = NarrowBits<E>(d, hn::LoadU(d, src + c));
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<decltype(d)>(), bits)), d16,
                 reinterpret_cast<uint16_t*>(dst) + c);
    }
  }
  for (; c < columns; ++c) dst[c] = E(src[c]);
}

template <class E, class T>
void LoadFrom(const void* from, int64_t row_stride, int64_t column_stride, int rows, int columns, T* dst,
              int64_t dst_stride) {
  const E* src = static_cast<const E*>(from);
  for (int r = 0; r < rows; ++r) {
    const E* row = src + r * row_stride;
    T* to = dst + r * dst_stride;
    if (column_stride == 1) LoadRow(row, columns, to);
    else
      for (int c = 0; c < columns; ++c) to[c] = Widen(row[c * column_stride]);
  }
}

template <class E, class T>
void StoreTo(const T* src, int64_t src_stride, int rows, int columns, void* to, int64_t row_stride,
             int64_t column_stride) {
  E* dst = static_cast<E*>(to);
  for (int r = 0; r < rows; ++r) {
    if (column_stride == 1) {
      StoreRow(src + r * src_stride, columns, dst + r * row_stride);
      continue;
    }
    for (int c = 0; c < columns; ++c) dst[r * row_stride + c * column_stride] = E(src[r * src_stride + c]);
  }
}

void LoadFloat(const void* src, DType type, int64_t row_stride, int64_t column_stride, int rows, int columns,
               float* dst, int64_t dst_stride) {
  if (type == DType::kFloat16) LoadFrom<float16>(src, row_stride, column_stride, rows, columns, dst, dst_stride);
  else if (type == DType::kBFloat16) LoadFrom<bfloat16>(src, row_stride, column_stride, rows, columns, dst, dst_stride);
  else LoadFrom<float>(src, row_stride, column_stride, rows, columns, dst, dst_stride);
}
void LoadDouble(const void* src, DType, int64_t row_stride, int64_t column_stride, int rows, int columns, double* dst,
                int64_t dst_stride) {
  LoadFrom<double>(src, row_stride, column_stride, rows, columns, dst, dst_stride);
}
void StoreFloat(const float* src, int64_t src_stride, int rows, int columns, void* dst, DType type, int64_t row_stride,
                int64_t column_stride) {
  if (type == DType::kFloat16) StoreTo<float16>(src, src_stride, rows, columns, dst, row_stride, column_stride);
  else if (type == DType::kBFloat16) StoreTo<bfloat16>(src, src_stride, rows, columns, dst, row_stride, column_stride);
  else StoreTo<float>(src, src_stride, rows, columns, dst, row_stride, column_stride);
}
void StoreDouble(const double* src, int64_t src_stride, int rows, int columns, void* dst, DType, int64_t row_stride,
                 int64_t column_stride) {
  StoreTo<double>(src, src_stride, rows, columns, dst, row_stride, column_stride);
}

#if HWY_TARGET != HWY_SCALAR
/// Rows [0, returned) are done.
int TransposeRows(const float* src, int64_t src_stride, int rows, int columns, float factor, float* dst,
                  int64_t dst_stride) {
  int r = 0;
  const hn::ScalableTag<float> d;
  const hn::FixedTag<float, 4> d4;
  const int n = int(hn::Lanes(d));
  for (; r + 4 <= rows; r += 4) {
    const float* from = src + r * src_stride;
    int c = 0;
    for (; c + n <= columns; c += n)
      qkv::HWY_NAMESPACE::TransposeFourRows(d, from + c, src_stride, hn::Set(d, factor), dst + c * dst_stride + r,
                                            dst_stride);
    for (; c + 4 <= columns; c += 4)
      qkv::HWY_NAMESPACE::TransposeFourRows(d4, from + c, src_stride, hn::Set(d4, factor), dst + c * dst_stride + r,
                                            dst_stride);
    for (; c < columns; ++c)
      for (int i = 0; i < 4; ++i) dst[c * dst_stride + r + i] = from[i * src_stride + c] * factor;
  }
  return r;
}
#endif

template <class T>
void Transpose(const T* src, int64_t src_stride, int rows, int columns, T factor, T* dst, int64_t dst_stride) {
  int r = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) r = TransposeRows(src, src_stride, rows, columns, factor, dst, dst_stride);
#endif
  for (; r < rows; ++r)
    for (int c = 0; c < columns; ++c) dst[c * dst_stride + r] = src[r * src_stride + c] * factor;
}

}  // namespace

const RowKernels<float>* RowsFloat() {
  static constexpr RowKernels<float> kTable{LoadFloat, StoreFloat, Transpose<float>};
  return &kTable;
}
const RowKernels<double>* RowsDouble() {
  static constexpr RowKernels<double> kTable{LoadDouble, StoreDouble, Transpose<double>};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::kernels {
HWY_EXPORT(RowsFloat);
HWY_EXPORT(RowsDouble);
template <> const RowKernels<float>& row_kernels<float>() { return *HWY_DYNAMIC_DISPATCH(RowsFloat)(); }
template <> const RowKernels<double>& row_kernels<double>() { return *HWY_DYNAMIC_DISPATCH(RowsDouble)(); }
}  // namespace qkv::kernels
#endif
