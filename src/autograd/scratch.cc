#include "autograd/scratch.h"

#include "autograd/rows.h"
#include "kernels/elementwise.h"
#include "nn/rows.h"

namespace qkv::nn {
void sum_of(View<const void> a, View<const void> b, View<void> sum, const Call& call) {
  with_arithmetic(sum.dtype, [&]<class T>(T*) {
    for_pieces(call, Grid(sum, sum, a, b), [&](int64_t row, int64_t column, int64_t n) {
      T of_a[kPiece], of_b[kPiece];
      const auto x = read<T>(a, row, column, 1, n, of_a), y = read<T>(b, row, column, 1, n, of_b);
      const auto to = place<T>(sum, row, column, n, of_b);
      kernels::elementwise_kernels<T>().add(x.data, y.data, n, to.data);
      finish(sum, row, column, 1, int(n), to);
    });
  });
}

namespace {

/// Matrix (a, b) of a tensor of up to four axes, of which the last two are its own.
template <class Void> View<Void> matrix_of(const View<Void>& v, int64_t a, int64_t b) {
  const int64_t sizes[] = {v.shape[2], v.shape[3]}, steps[] = {v.strides[2], v.strides[3]};
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  Byte* first = static_cast<Byte*>(v.data) + v.offset(a, b) * int64_t(size_of(v.dtype));
  return {first, v.dtype, Layout(sizes, steps)};
}

/// With axes of size 1 in front, so that there are four.
template <class Void> View<Void> four_axes(const View<Void>& v) {
  View<Void> all = v;
  all.rank = kMaxRank;
  for (int axis = 0; axis < kMaxRank; ++axis) {
    const int from = axis - (kMaxRank - v.rank);
    all.shape[size_t(axis)] = from < 0 ? 1 : v.shape[size_t(from)];
    all.strides[size_t(axis)] = from < 0 ? 0 : v.strides[size_t(from)];
  }
  return all;
}

}  // namespace

void add_to(View<const void> from, View<void> to, const Call& call) {
  const auto add = [&](const View<const void>& x, const View<void>& y) { sum_of(x, y, y, call); };
  if (is_contiguous(from) && is_contiguous(to)) {
    const int64_t sizes[] = {1, to.size()};
    return add(rows(from, Layout(sizes)), rows(to, Layout(sizes)));
  }
  const auto x = four_axes(from);
  const auto y = four_axes(to);
  for (int64_t a = 0; a < y.shape[0]; ++a)
    for (int64_t b = 0; b < y.shape[1]; ++b) add(matrix_of(x, a, b), matrix_of(y, a, b));
}

}  // namespace qkv::nn
