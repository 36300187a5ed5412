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
/// Throws ShapeError, DtypeError, OptionError.
QKV_EXPORT void merge_partials(std::span<const Partial> parts, View<const void> sinks, View<void> out, View<void> lse,
                               const Call& = {});

/// d loss / d what forward() gave for some of the keys; an empty view is not computed. For backward() of that part.
struct PartialGradient {
  View<void> dout{};  ///< of the shape of `out`, any of the four types
  View<void> dlse{};  ///< of the shape of `lse`, float32 or float64
};
struct MergeGradients {
  std::span<const PartialGradient> parts{};  ///< one a part; empty: none is computed
  View<void> dsinks{};                       ///< {Hq}, float32 or float64
};

/// The gradients of what merge_partials() does, from those by what it gave: `dout` like out, `dlse` like lse, absent: 0. With
/// the weights w_n = exp(lse_n - lse), made again from the parts, and delta = dout . out - dlse:
///   dout_n = w_n dout,   dlse_n = w_n (dout . out_n - delta),   dsinks[h] = -sum over rows of exp(sinks[h] - lse) delta
/// the last summed in double, row after row. A part that saw nothing gets exact zeros, whatever its `out` and `dout` hold.
/// Throws ShapeError, DtypeError, OptionError.
QKV_EXPORT void merge_partials_backward(std::span<const Partial> parts, View<const void> sinks, View<const void> dout,
                                        View<const void> dlse, const MergeGradients&, const Call& = {});

}  // namespace qkv
