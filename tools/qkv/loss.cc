#include "qkv/loss.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "qkv/error.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

/// {L}, {H, L} or {B, H, L}, as the last.
View<const void> as_three_axes(View<const void> x) {
  switch (x.rank) {
    case 1: return with_axes(x, {-1, -1, 0});
    case 2: return with_axes(x, {-1, 0, 1});
    default: return x;
  }
}

/// {1, .., 1, n}, where a tensor of so many axes is wanted and has one.
View<const void> with_axes_in_front(View<const void> x, size_t axes) {
  if (x.rank != 1) return x;
  return axes == 4 ? with_axes(x, {-1, -1, -1, 0}) : with_axes(x, {-1, -1, 0});
}

/// A gradient that is no number, or infinite, makes everything so: nobody wants to look at that.
void refuse_endless(View<const void> x, const char* name) {
  for (int64_t a = 0; a < x.shape[0]; ++a)
    for (int64_t b = 0; b < x.shape[1]; ++b)
      for (int64_t c = 0; c < x.shape[2]; ++c)
        for (int64_t d = 0; d < x.shape[3]; ++d)
          if (const double v = element(x, a, b, c, d); !std::isfinite(v))
            throw OptionError(
                fmt::format("{}: there is {} in it, expected finite numbers", name, std::isnan(v) ? "nan" : "inf"));
}

/// The same numbers in another type; a note where they are not quite the same.
View<const void> rounded(Problem& p, View<const void> x, DType type, const char* name) {
  if (x.dtype == type) return x;
  p.memory.push_back(to_type(x, type));
  const View<const void> y = std::as_const(p.memory.back()).view();
  if (!same_numbers(x, y))
    p.notes.push_back(fmt::format("{} is {}: rounded to {}", name, qkv::name(x.dtype), qkv::name(type)));
  return y;
}

/// Axes of size 1 stand for all of an axis.
View<const void> spread(View<const void> x, const std::vector<int64_t>& shape, const char* name, const char* like) {
  const View<const void> given = x;
  bool fits = x.rank == static_cast<int>(shape.size());
  for (size_t axis = 0; fits && axis < shape.size(); ++axis) {
    if (x.shape[axis] != shape[axis] && x.shape[axis] == 1) x.shape[axis] = shape[axis], x.strides[axis] = 0;
    fits = x.shape[axis] == shape[axis];
  }
  if (!fits)
    throw ShapeError(fmt::format("{} {}: expected the shape of {}, {{{}}}, each axis 1 or full", name,
                                 shape_text(given), like, fmt::join(shape, ", ")));
  return x;
}

}  // namespace

void set_loss(Problem& p, View<const void> dout, View<const void> dlse) {
  refuse_endless(dout, "dout");
  if (dlse) refuse_endless(dlse, "dlse");
  if (!p.has_values) throw OptionError("dout: there are no values, so there is no out; give v too");
  const Sizes& s = p.sizes;
  std::vector<int64_t> rows = {s.batch, s.heads, s.queries};
  if (p.packed) rows = {p.inputs.query.shape[0], s.heads};
  std::vector<int64_t> wide = rows;
  wide.push_back(s.value_dim);
  dout = with_axes_in_front(dout, wide.size());
  p.dout = spread(rounded(p, p.packed && dout.rank == 3 ? dout : as_four_axes(dout), p.inputs.query.dtype, "dout"),
                  wide, "dout", "out");
  if (dlse)
    p.dlse = spread(rounded(p, p.packed ? dlse : as_three_axes(dlse), sum_type(p), "dlse"), rows, "dlse", "lse");
}

}  // namespace qkv::cli
