// Tables of relative positions: which row a pair takes, the bias made of them and its gradient, Transformer-XL's shift.
#include <cmath>
#include <cstring>

#include "core/elements.h"
#include "core/parallel.h"
#include "core/workspace.h"
#include "nn/arguments.h"
#include "qkv/positions.h"

namespace qkv {
namespace {

void check_buckets(const char* function, const T5Buckets& t) {
  const bool both = t.sides == T5Buckets::Sides::kBoth;
  const int least = both ? 4 : 2;
  if (t.buckets < least || (both && t.buckets % 2 != 0))
    option_error("{}: buckets is {}, expected {}", function, t.buckets,
                 both ? "an even number, 4 or more: half of them for each side" : "2 or more");
  const int exact = (both ? t.buckets / 2 : t.buckets) / 2;
  if (t.max_distance <= exact)
    option_error("{}: max_distance is {}, expected more than {}, the distances that have a bucket each", function,
                 t.max_distance, exact);
}

int bucket_of(const T5Buckets& t, int64_t distance) {
  const bool both = t.sides == T5Buckets::Sides::kBoth;
  const int buckets = both ? t.buckets / 2 : t.buckets, exact = buckets / 2;
  const int first = both && distance > 0 ? buckets : 0;
  const int64_t far = distance < 0 ? -distance : both ? distance : 0;
  if (far < exact) return first + int(far);
  // Each step rounded to single precision, as tensors of float32 do: it decides which side of a border a distance falls on.
  const auto share = float(std::log(double(float(far) / float(exact))));
  const float log_of_all = float(std::log(double(t.max_distance) / exact));
  const float step = share / log_of_all * float(buckets - exact);
  return first + (step >= float(buckets - 1 - exact) ? buckets - 1 : exact + int(step));
}

/// Every index has a row in the table.
void check_index(const char* function, View<const int32_t> index, int64_t rows) {
  for (int64_t i = 0; i < index.shape[0]; ++i)
    for (int64_t j = 0; j < index.shape[1]; ++j)
      if (index(i, j) < 0 || index(i, j) >= rows)
        option_error("{}: index[{}, {}] is {} but the table has {} rows; make both from the same sizes", function, i, j,
                     index(i, j), rows);
}

void check_pair(const char* function, View<const int32_t> index, const char* table_name, View<const void> table,
                const char* bias_name, View<const void> bias) {
  arguments::tensor(function, "index", index);
  if (index.rank != 2) shape_error("{}: index has shape {}, expected {{queries, keys}}", function, index);
  arguments::floating(function, table_name, table);
  if (table.rank != 2) shape_error("{}: {} has shape {}, expected {{rows, heads}}", function, table_name, table);
  arguments::floating(function, bias_name, bias);
  arguments::shape(function, bias_name, bias, {1, table.shape[1], index.shape[0], index.shape[1]});
  check_index(function, index, table.shape[0]);
}

struct ShiftSizes {
  int64_t heads, length, width;
};
ShiftSizes check_shift(const char* function, const char* from, View<const void> x, const char* to, View<void> y) {
  arguments::tensor(function, from, x);
  if (x.rank != 4) shape_error("{}: {} has shape {}, expected {{batch, heads, queries, keys}}", function, from, x);
  arguments::same(function, to, y, from, x);
  if (x.data == y.data && x.size() > 0)
    option_error("{}: {} is {}, expected other memory: elements move between rows", function, to, from);
  return {x.shape[1], x.shape[2], x.shape[3]};
}

/// f(i, j, row, column) for the elements of one matrix of y: y[i, j] is x[row, column - 1], or 0 where column is 0. That is x with a
/// column of zeros before it, read in row order without its first `length` elements.
template <class F> void each_shifted(const ShiftSizes& s, const F& f) {
  int64_t row = s.length / (s.width + 1), column = s.length % (s.width + 1);
  for (int64_t i = 0; i < s.length; ++i)
    for (int64_t j = 0; j < s.width; ++j) {
      f(i, j, row, column);
      if (++column > s.width) column = 0, ++row;
    }
}

}  // namespace

int t5_bucket(const T5Buckets& t, int64_t distance) {
  check_buckets("t5_bucket", t);
  return bucket_of(t, distance);
}

void t5_index(const T5Buckets& t, int64_t query_offset, int64_t key_start, View<int32_t> index) {
  check_buckets("t5_index", t);
  arguments::tensor("t5_index", "index", index);
  if (index.rank != 2) shape_error("t5_index: index has shape {}, expected {{queries, keys}}", index);
  for (int64_t i = 0; i < index.shape[0]; ++i) {
    // The same distances as the row before, one column on.
    for (int64_t j = 0; j < index.shape[1]; ++j)
      index(i, j) = i > 0 && j > 0 ? index(i - 1, j - 1) : bucket_of(t, key_start + j - (query_offset + i));
  }
}

void window_index(int64_t height, int64_t width, View<int32_t> index) {
  constexpr int64_t kMostCells = 1 << 15;
  if (height < 1 || width < 1 || height > kMostCells || width > kMostCells || height * width > kMostCells)
    option_error("window_index: the window is {} x {}, expected 1 to {} cells", height, width, kMostCells);
  arguments::tensor("window_index", "index", index);
  arguments::shape("window_index", "index", index, {height * width, height * width});
  for (int64_t p = 0; p < height * width; ++p)
    for (int64_t q = 0; q < height * width; ++q) {
      const int64_t down = p / width - q / width + height - 1, right = p % width - q % width + width - 1;
      index(p, q) = int32_t(down * (2 * width - 1) + right);
    }
}

void relative_bias_forward(View<const int32_t> index, View<const void> table, View<void> bias, const Call& call) {
  check_pair("relative_bias_forward", index, "table", table, "bias", bias);
  if (table.dtype != bias.dtype)
    dtype_error("relative_bias_forward: bias has type {} but table has {}; they must agree", bias.dtype, table.dtype);
  const int64_t keys = index.shape[1];
  parallel(call, bias.shape[1] * bias.shape[2], [&](int64_t item) {
    const int64_t h = item / bias.shape[2], i = item % bias.shape[2];
    with_floating(table.dtype, [&]<class E>(E*) {
      const E* const rows = static_cast<const E*>(table.data) + h * table.strides[1];
      E* const to = static_cast<E*>(bias.data) + bias.offset(0, h, i);
      for (int64_t j = 0; j < keys; ++j) to[j * bias.strides[3]] = rows[index(i, j) * table.strides[0]];
    });
  });
}

void relative_bias_backward(View<const int32_t> index, View<const void> dbias, View<void> dtable, const Call& call) {
  check_pair("relative_bias_backward", index, "dtable", dtable, "dbias", dbias);
  const int64_t rows = dtable.shape[0], keys = index.shape[1];
  WorkspaceOf workspace(call);
  parallel(call, dtable.shape[1], [&](int64_t h) {
    const Workspace::Impl::Lease lease(workspace.impl(), size_t(rows) * sizeof(double));
    auto* const sums = static_cast<double*>(lease.data());
    std::fill_n(sums, rows, 0.0);
    with_floating(dbias.dtype, [&]<class E>(E*) {
      for (int64_t i = 0; i < index.shape[0]; ++i) {
        const E* const from = static_cast<const E*>(dbias.data) + dbias.offset(0, h, i);
        for (int64_t j = 0; j < keys; ++j) sums[index(i, j)] += double(from[j * dbias.strides[3]]);
      }
    });
    store(dtable, h * dtable.strides[1], dtable.strides[0], rows, sums);
  });
}

void relative_shift_forward(View<const void> x, View<void> y, const Call& call) {
  const ShiftSizes s = check_shift("relative_shift_forward", "x", x, "y", y);
  const auto bytes = int64_t(size_of(x.dtype));
  parallel(call, x.shape[0] * s.heads, [&](int64_t item) {
    const auto* from = static_cast<const std::byte*>(x.data) + x.offset(item / s.heads, item % s.heads) * bytes;
    auto* to = static_cast<std::byte*>(y.data) + y.offset(item / s.heads, item % s.heads) * bytes;
    each_shifted(s, [&](int64_t i, int64_t j, int64_t row, int64_t column) {
      auto* const at = to + y.offset(0, 0, i, j) * bytes;
      if (column == 0) std::memset(at, 0, size_t(bytes));
      else std::memcpy(at, from + x.offset(0, 0, row, column - 1) * bytes, size_t(bytes));
    });
  });
}

void relative_shift_backward(View<const void> dy, View<void> dx, const Call& call) {
  const ShiftSizes s = check_shift("relative_shift_backward", "dy", dy, "dx", dx);
  const auto bytes = int64_t(size_of(dy.dtype));
  parallel(call, dy.shape[0] * s.heads, [&](int64_t item) {
    const auto* from = static_cast<const std::byte*>(dy.data) + dy.offset(item / s.heads, item % s.heads) * bytes;
    auto* to = static_cast<std::byte*>(dx.data) + dx.offset(item / s.heads, item % s.heads) * bytes;
    // The first elements of x are taken by nobody.
    for (int64_t n = 0; n < s.length; ++n) {
      const int64_t row = n / (s.width + 1), column = n % (s.width + 1);
      if (column > 0) std::memset(to + dx.offset(0, 0, row, column - 1) * bytes, 0, size_t(bytes));
    }
    each_shifted(s, [&](int64_t i, int64_t j, int64_t row, int64_t column) {
      if (column > 0)
        std::memcpy(to + dx.offset(0, 0, row, column - 1) * bytes, from + dy.offset(0, 0, i, j) * bytes, size_t(bytes));
    });
  });
}

}  // namespace qkv
