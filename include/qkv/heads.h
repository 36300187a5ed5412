// Small pieces around attention: heads, ALiBi's slopes, rollout.
#pragma once
#include <cstdint>
#include <vector>

#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv {

namespace detail {
QKV_EXPORT Layout split_heads(const Layout& x, int64_t heads);
}
/// {B, L, heads * d} seen as {B, heads, L, d}, without a copy. Throws ShapeError where heads does not
/// divide the width, or the rank is not 3.
template <class T> View<T> split_heads(View<T> x, int64_t heads) {
  static_cast<Layout&>(x) = detail::split_heads(x, heads);
  return x;
}

/// Writes x {B, H, L, d} into y {B, L, H * d}: y[b, l, h * d + e] = x[b, h, l, e]. A reshape without this transposition is
/// the fault that scrambles heads. Same types. Throws ShapeError, DtypeError.
QKV_EXPORT void merge_heads(View<const void> x, View<void> y);

/// ALiBi's slopes of `heads` heads: 2^(-8k/n), k = 1..n, for n a power of two; for others those of the next smaller power,
/// then every other one of twice that power. Press, Smith, Lewis 2022. Throws OptionError below 1.
QKV_EXPORT std::vector<float> alibi_slopes(int heads);

/// Attention rollout: layers {n, L, L} from input to output, heads already fused. Each a = (A + I) / 2 with every row
/// divided by its sum; out {L, L} = a_last ... a_first, rows sum to 1. float32 or float64 alike. Abnar, Zuidema 2020.
/// Throws ShapeError, DtypeError, Cancelled.
QKV_EXPORT void rollout(View<const void> layers, View<void> out, const Call& = {});

}  // namespace qkv
