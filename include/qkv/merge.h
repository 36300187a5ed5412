// Attention over parts of the keys, put together by log-sum-exp: over chunks, machines, a shared prefix.
#pragma once
#include <span>

#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv {

/// What forward() gave for some of the keys, without sinks.
struct Partial {
  View<const void> out{};  ///< {B, Hq, L, Dv}, packed {total queries, Hq, Dv}
  View<const void> lse{};  ///< {B, Hq, L}, packed {total queries, Hq}
};

/// The attention over all parts together:
///   lse = log(sum of exp(lse_n) + exp(sink)),   out = sum of exp(lse_n - lse) * out_n
/// in the order given. sinks {Hq}, absent: none; it is counted once, here, so the parts are computed without. out and lse
/// as in forward(). A part that saw nothing (lse -inf) adds nothing, whatever its `out` holds. No parts: out 0.
/// Throws ShapeError, DtypeError.
QKV_EXPORT void merge_partials(std::span<const Partial> parts, View<const void> sinks, View<void> out, View<void> lse,
                               const Call& = {});

}  // namespace qkv
