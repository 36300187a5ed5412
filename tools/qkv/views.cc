#include "qkv/views.h"

#include <cmath>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

template <class T> int64_t nan_in(View<const T> x) {
  int64_t count = 0;
  for (int64_t a = 0; a < x.shape[0]; ++a) {
    for (int64_t b = 0; b < x.shape[1]; ++b) {
      for (int64_t c = 0; c < x.shape[2]; ++c) {
        for (int64_t d = 0; d < x.shape[3]; ++d) count += std::isnan(static_cast<double>(x(a, b, c, d))) ? 1 : 0;
      }
    }
  }
  return count;
}

}  // namespace

View<const void> with_axes(View<const void> x, std::initializer_list<int> axes) {
  Layout layout;
  for (int axis : axes) {
    const auto to = static_cast<size_t>(layout.rank++);
    layout.shape[to] = axis < 0 ? 1 : x.shape[static_cast<size_t>(axis)];
    layout.strides[to] = axis < 0 ? 0 : x.strides[static_cast<size_t>(axis)];
  }
  return {x.data, x.dtype, layout};
}

View<const void> as_four_axes(View<const void> x) {
  switch (x.rank) {
    case 2: return with_axes(x, {-1, -1, 0, 1});
    case 3: return with_axes(x, {-1, 0, 1, 2});
    default: return x;
  }
}

View<const void> without_first_axes(View<const void> x, int count) {
  const int dropped = std::min(count, x.rank - 1);
  Layout layout;
  for (int axis = dropped; axis < x.rank; ++axis) {
    const auto to = static_cast<size_t>(layout.rank++), from = static_cast<size_t>(axis);
    layout.shape[to] = x.shape[from];
    layout.strides[to] = x.strides[from];
  }
  return {x.data, x.dtype, layout};
}

double element(View<const void> x, int64_t a, int64_t b, int64_t c, int64_t d) {
  switch (x.dtype) {
    case DType::kFloat32: return x.as<const float>()(a, b, c, d);
    case DType::kFloat64: return x.as<const double>()(a, b, c, d);
    case DType::kFloat16: return x.as<const float16>()(a, b, c, d);
    case DType::kBFloat16: return x.as<const bfloat16>()(a, b, c, d);
    default:
      throw DtypeError(fmt::format("expected a floating-point tensor, got {} {}; save x.astype(np.float32)",
                                   name(x.dtype), shape_text(x)));
  }
}

int64_t count_nan(View<const void> x) {
  switch (x.dtype) {
    case DType::kFloat32: return nan_in(x.as<const float>());
    case DType::kFloat64: return nan_in(x.as<const double>());
    case DType::kFloat16: return nan_in(x.as<const float16>());
    case DType::kBFloat16: return nan_in(x.as<const bfloat16>());
    default: return 0;
  }
}

Array to_float64(View<const void> x) {
  Array result(DType::kFloat64, {x.shape.begin(), x.shape.begin() + x.rank});
  auto* to = static_cast<double*>(result.data());
  for (int64_t a = 0; a < x.shape[0]; ++a) {
    for (int64_t b = 0; b < x.shape[1]; ++b) {
      for (int64_t c = 0; c < x.shape[2]; ++c) {
        for (int64_t d = 0; d < x.shape[3]; ++d) *to++ = element(x, a, b, c, d);
      }
    }
  }
  return result;
}

}  // namespace qkv::cli
