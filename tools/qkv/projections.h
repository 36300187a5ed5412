// Queries, keys and values made from tokens: q = x wq, k = x wk, v = x wv.
#pragma once
#include <string>

#include "qkv/io.h"
#include "qkv/view.h"

namespace qkv::cli {

/// How a weight lies in memory: {in, out}, as in q = x w, or {out, in}, as torch.nn.Linear keeps it.
enum class WeightLayout : uint8_t { kInOut, kOutIn };

/// What came in. x {B, L, E} or {L, E}; wq {E, Hq D}, wk {E, Hkv D}, wv {E, Hkv Dv}, wo {Hq Dv, E'} or nothing; the other
/// way round where `layout` says so.
struct Projections {
  View<const void> x, wq, wk, wv, wo;
  WeightLayout layout = WeightLayout::kInOut;
  int64_t heads = 1;

  /// One number of a weight, by what comes in and what goes out.
  double weight(View<const void> w, int64_t in, int64_t out) const;
  int64_t inputs_of(View<const void> w) const { return w.shape[layout == WeightLayout::kInOut ? 0 : 1]; }
  int64_t outputs_of(View<const void> w) const { return w.shape[layout == WeightLayout::kInOut ? 1 : 0]; }
};

/// Finds the layout by the sizes, where `asked` ("in_out", "out_in" or "") does not say it, and checks all sizes.
/// Square weights fit both ways: they are refused unless they are symmetric, which makes both the same.
/// Throws ShapeError, DtypeError, OptionError.
Projections understand_projections(View<const void> x, View<const void> wq, View<const void> wk, View<const void> wv,
                                   View<const void> wo, int64_t heads, const std::string& asked);

/// x w, cut into heads of size `dim`: {B, heads, L, dim} of x's type. Sums in float64, rounded once.
Array project(const Projections&, View<const void> w, int64_t dim);

/// What the layer hands on: heads side by side, times wo. out {B, Hq, L, Dv} to {B, L, E'} of out's type.
Array project_out(const Projections&, View<const void> out);

}  // namespace qkv::cli
