// Heads: split, merged, and ALiBi's slopes.
#include "qkv/heads.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "attention/check.h"
#include "core/format.h"

namespace qkv {
namespace {

/// 2^(-8k/n) for k = 1..n; n is a power of two.
double slope_of_power(int k, int n) { return std::exp2(-8.0 * k / n); }

}  // namespace

Layout detail::split_heads(const Layout& x, int64_t heads) {
  if (x.rank != 3) shape_error("split_heads: x has shape {}, expected {{batch, length, heads * size}}", x);
  if (heads < 1 || x.shape[2] % heads != 0)
    shape_error("split_heads: x has shape {} and {} heads are wanted; its last axis must be a multiple of them", x,
                heads);
  const int64_t size = x.shape[2] / heads;
  const int64_t sizes[] = {x.shape[0], heads, x.shape[1], size};
  const int64_t steps[] = {x.strides[0], size * x.strides[2], x.strides[1], x.strides[2]};
  return Layout(sizes, steps);
}

void merge_heads(View<const void> x, View<void> y) {
  if (x.rank != 4) shape_error("merge_heads: x has shape {}, expected {{batch, heads, length, size}}", x);
  const int64_t batch = x.shape[0], heads = x.shape[1], length = x.shape[2], size = x.shape[3];
  if (y.rank != 3 || y.shape[0] != batch || y.shape[1] != length || y.shape[2] != heads * size)
    shape_error("merge_heads: y has shape {}, expected {{{}, {}, {}}} for x of shape {}", y, batch, length,
                heads * size, x);
  if (x.dtype != y.dtype) dtype_error("merge_heads: x has type {} but y has {}; they must agree", x.dtype, y.dtype);
  check::data("merge_heads", "x", x);
  check::data("merge_heads", "y", y);

  const auto bytes = int64_t(size_of(x.dtype));
  const auto* from = static_cast<const std::byte*>(x.data);
  auto* to = static_cast<std::byte*>(y.data);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t l = 0; l < length; ++l)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t e = 0; e < size; ++e)
          std::memcpy(to + y.offset(b, l, h * size + e) * bytes, from + x.offset(b, h, l, e) * bytes, size_t(bytes));
}

std::vector<float> alibi_slopes(int heads) {
  if (heads < 1) option_error("alibi_slopes: heads is {}; expected 1 or more", heads);
  const int power = int(std::bit_floor(unsigned(heads)));
  std::vector<float> slopes;
  slopes.reserve(size_t(heads));
  for (int k = 1; k <= power; ++k) slopes.push_back(float(slope_of_power(k, power)));
  for (int k = 1; int(slopes.size()) < heads; k += 2) slopes.push_back(float(slope_of_power(k, 2 * power)));
  return slopes;
}

}  // namespace qkv
