#include "qkv/views.h"

#include <cmath>

#include <algorithm>
#include <array>
#include <stdexcept>

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/numbers.h"

namespace qkv::cli {

namespace {

template <class F> void each_index(const Layout& x, F f) {
  for (int64_t a = 0; a < x.shape[0]; ++a) {
    for (int64_t b = 0; b < x.shape[1]; ++b) {
      for (int64_t c = 0; c < x.shape[2]; ++c) {
        for (int64_t d = 0; d < x.shape[3]; ++d) f(a, b, c, d);
      }
    }
  }
}

template <class T> int64_t nan_in(View<const T> x) {
  int64_t count = 0;
  each_index(x, [&](auto... at) { count += std::isnan(static_cast<double>(x(at...))) ? 1 : 0; });
  return count;
}

void set_element(View<void> x, double value, int64_t a, int64_t b, int64_t c, int64_t d) {
  switch (x.dtype) {
    case DType::kFloat32: x.as<float>()(a, b, c, d) = static_cast<float>(value); break;
    case DType::kFloat64: x.as<double>()(a, b, c, d) = value; break;
    case DType::kFloat16: x.as<float16>()(a, b, c, d) = float16(static_cast<float>(value)); break;
    case DType::kBFloat16: x.as<bfloat16>()(a, b, c, d) = bfloat16(static_cast<float>(value)); break;
    default: throw std::logic_error("set_element: not a floating type");
  }
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

std::vector<double> as_doubles(View<const void> x, int64_t a, int64_t b, int64_t c) {
  std::vector<double> row(static_cast<size_t>(x.shape[3]));
  for (size_t d = 0; d < row.size(); ++d) row[d] = element(x, a, b, c, static_cast<int64_t>(d));
  return row;
}

Array to_type(View<const void> x, DType type) {
  Array result(type, {x.shape.begin(), x.shape.begin() + x.rank});
  const View<void> y = result.view();
  each_index(y, [&](auto... at) { set_element(y, element(x, at...), at...); });
  return result;
}

bool same_numbers(View<const void> x, View<const void> y) {
  bool same = true;
  each_index(x, [&](auto... at) { same = same && apart(element(x, at...), element(y, at...)) == 0; });
  return same;
}

}  // namespace qkv::cli
