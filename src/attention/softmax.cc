#include "qkv/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/check.h"
#include "core/ceil_div.h"
#include "core/elements.h"
#include "core/format.h"
#include "core/parallel.h"
#include "core/workspace.h"

namespace qkv {
namespace {

/// Fewer elements are not worth a work item.
constexpr int64_t kElementsOfAnItem = 1 << 14;
/// Of a long line between two looks at the stop token.
constexpr int64_t kElementsOfAStretch = 1 << 20;

/// What one call is about, after its checks.
struct Lines {
  View<const void> x;
  View<void> y;
  View<const bool> keep;
  int axis;
  int64_t length, count;  // of a line, of lines

  /// The index of a line: 0 along the axis.
  Extents index(int64_t line) const {
    Extents at{};
    for (int a = kMaxRank; a-- > 0;) {
      const int64_t size = a == axis ? 1 : x.shape[a];
      at[a] = line % size;
      line /= size;
    }
    return at;
  }
};

int64_t offset_at(const Layout& layout, const Extents& i) { return layout.offset(i[0], i[1], i[2], i[3]); }

void check_input(const char* function, View<const void> x, int axis) {
  if (!x) shape_error("{}: x is missing; pass a view", function);
  check::data(function, "x", x);
  if (!is_floating(x.dtype))
    dtype_error("{}: x has type {}, expected float32, float64, float16 or bfloat16; convert it", function, x.dtype);
  if (axis < -x.rank || axis >= x.rank)
    option_error("{}: axis is {}, expected {} to {} for x of shape {}; -1 is the last one", function, axis, -x.rank,
                 x.rank - 1, x);
}

void check_output(const char* function, View<void> y, const Layout& expected) {
  if (!is_floating(y.dtype))
    dtype_error("{}: y has type {}, expected float32, float64, float16 or bfloat16; convert it", function, y.dtype);
  if (y.rank != expected.rank || y.shape != expected.shape)
    shape_error("{}: y has shape {}, expected {}; allocate it so", function, y, expected);
  check::data(function, "y", y);
}

void check_keep(const char* function, View<const bool> keep, const Layout& x) {
  if (!keep) return;
  bool fits = keep.rank == x.rank;
  for (int a = 0; a < kMaxRank && fits; ++a) fits = keep.shape[a] == 1 || keep.shape[a] == x.shape[a];
  if (!fits)
    shape_error("{}: keep has shape {}, expected {} with each axis full or 1; insert axes of size 1", function, keep,
                x);
  check::data(function, "keep", keep);
}

enum class Result : uint8_t { kPerElement, kPerLine };

Lines check_call(const char* function, View<const void> x, View<void> y, int axis, View<const bool> keep,
                 Result result) {
  check_input(function, x, axis);
  if (axis < 0) axis += x.rank;
  Layout expected(std::span(x.shape.data(), size_t(x.rank)));
  if (result == Result::kPerLine) expected.shape[axis] = 1;
  check_output(function, y, expected);
  check_keep(function, keep, x);
  int64_t count = 1;
  for (int a = 0; a < x.rank; ++a) count *= a == axis ? 1 : x.shape[a];
  return {x, y, keep, axis, x.shape[axis], count};
}

/// Sets the values of a line that are not kept.
template <class T> void set_hidden(const Lines& lines, const Extents& at, T* values, T value) {
  if (!lines.keep) return;
  const auto* kept =
      reinterpret_cast<const uint8_t*>(lines.keep.data) + lines.keep.broadcast_offset(at[0], at[1], at[2], at[3]);
  const int64_t step = lines.keep.shape[lines.axis] == 1 ? 0 : lines.keep.strides[lines.axis];
  for (int64_t i = 0; i < lines.length; ++i) {
    if (!kept[i * step]) values[i] = value;
  }
}

/// f(begin, end) for stretches of a line that begins to be long.
template <class F> void stretches(const Call& call, int64_t length, const F& f) {
  for (int64_t i = 0; i < length; i += kElementsOfAStretch) {
    stop_point(call.stop);
    f(i, std::min(length, i + kElementsOfAStretch));
  }
}

/// Reads a line; what is not kept becomes -inf, so that it adds exp(-inf) = 0 to every sum.
template <class T> void read_line(const Lines& lines, const Call& call, const Extents& at, T* values) {
  const int64_t first = offset_at(lines.x, at), step = lines.x.strides[lines.axis];
  stretches(call, lines.length, [&](int64_t begin, int64_t end) {
    load(lines.x, first + begin * step, step, end - begin, values + begin);
  });
  set_hidden(lines, at, values, -std::numeric_limits<T>::infinity());
}

/// The largest value, -inf of none. A NaN may be passed over: the sum of the exponentials finds it.
template <class T> T largest(const Call& call, const T* values, int64_t n) {
  T max = -std::numeric_limits<T>::infinity();
  stretches(call, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) max = values[i] > max ? values[i] : max;
  });
  return max;
}

/// What is subtracted before exp: the maximum, or 0 of a line in which nothing counts, since -inf - -inf is NaN.
template <class T> T shift_of(const Call& call, const T* values, int64_t n) {
  const T max = largest(call, values, n);
  return max == -std::numeric_limits<T>::infinity() ? T(0) : max;
}

template <class T> T sum_of_exponentials(const Call& call, const T* values, int64_t n, T shift) {
  T sum = 0;
  stretches(call, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum += std::exp(values[i] - shift);
  });
  return sum;
}

/// Every line once, `f(lines, index, values)` with its values in scratch of type T.
template <class T, class F> void for_lines_as(const Lines& lines, const Call& call, const F& f) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  const int64_t per_item = std::max<int64_t>(1, kElementsOfAnItem / std::max<int64_t>(1, lines.length));
  const int64_t items = ceil_div(lines.count, per_item);
  parallel(call, items, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace, size_t(lines.length) * sizeof(T));
    T* values = static_cast<T*>(lease.data());
    for (int64_t n = item * per_item; n < std::min(lines.count, (item + 1) * per_item); ++n) {
      const Extents at = lines.index(n);
      read_line(lines, call, at, values);
      f(lines, at, values);
    }
  });
}

template <class F> void for_lines(const Lines& lines, const Call& call, const F& f) {
  if (lines.x.dtype == DType::kFloat64) for_lines_as<double>(lines, call, f);
  else for_lines_as<float>(lines, call, f);
}

template <class T> void write_line(const Lines& lines, const Extents& at, const T* values) {
  store(lines.y, offset_at(lines.y, at), lines.y.strides[lines.axis], lines.length, values);
}

}  // namespace

void softmax(View<const void> x, View<void> y, int axis, View<const bool> keep, const Call& call) {
  const Lines all = check_call("softmax", x, y, axis, keep, Result::kPerElement);
  for_lines(all, call, [&call]<class T>(const Lines& lines, const Extents& at, T* values) {
    const T shift = shift_of(call, values, lines.length);
    T sum = 0;
    stretches(call, lines.length, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum += values[i] = std::exp(values[i] - shift);
    });
    if (sum == 0) sum = 1;  // nothing counts: every weight is 0
    for (int64_t i = 0; i < lines.length; ++i) values[i] /= sum;
    if (sum != sum) set_hidden(lines, at, values, T(0));  // the NaN is that of the kept ones
    write_line(lines, at, values);
  });
}

void log_softmax(View<const void> x, View<void> y, int axis, View<const bool> keep, const Call& call) {
  const Lines all = check_call("log_softmax", x, y, axis, keep, Result::kPerElement);
  for_lines(all, call, [&call]<class T>(const Lines& lines, const Extents& at, T* values) {
    const T shift = shift_of(call, values, lines.length);
    const T sum = sum_of_exponentials(call, values, lines.length, shift);
    const T log_sum = sum == 0 ? T(0) : std::log(sum);  // nothing counts: every logarithm stays -inf
    for (int64_t i = 0; i < lines.length; ++i) values[i] = (values[i] - shift) - log_sum;
    if (sum != sum) set_hidden(lines, at, values, -std::numeric_limits<T>::infinity());
    write_line(lines, at, values);
  });
}

void log_sum_exp(View<const void> x, View<void> y, int axis, View<const bool> keep, const Call& call) {
  const Lines all = check_call("log_sum_exp", x, y, axis, keep, Result::kPerLine);
  for_lines(all, call, [&call]<class T>(const Lines& lines, const Extents& at, T* values) {
    const T shift = shift_of(call, values, lines.length);
    const T result = shift + std::log(sum_of_exponentials(call, values, lines.length, shift));
    store(lines.y, offset_at(lines.y, at), 1, 1, &result);
  });
}

}  // namespace qkv
