#include "autograd/scratch.h"

#include <cstring>

#include "autograd/rows.h"
#include "nn/elementwise.h"
#include "nn/parts.h"

namespace qkv::nn {
namespace {

/// Matrix (a, b) of a tensor of up to four axes, of which the last two are its own.
template <class Void> View<Void> matrix_of(const View<Void>& v, int64_t a, int64_t b) {
  const int64_t sizes[] = {v.shape[2], v.shape[3]}, steps[] = {v.strides[2], v.strides[3]};
  return {at(v, a, b), v.dtype, Layout(sizes, steps)};
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
  const auto add_in = [&](const View<const void>& x, const View<void>& y) { add(x, y, y, call); };
  if (is_contiguous(from) && is_contiguous(to)) {
    const int64_t sizes[] = {1, to.size()};
    return add_in(rows(from, Layout(sizes)), rows(to, Layout(sizes)));
  }
  const auto x = four_axes(from);
  const auto y = four_axes(to);
  for (int64_t a = 0; a < y.shape[0]; ++a)
    for (int64_t b = 0; b < y.shape[1]; ++b) add_in(matrix_of(x, a, b), matrix_of(y, a, b));
}

void copy_or_add(View<const void> contribution, const Variable::Sink& sink, const Call& call) {
  if (sink.add) return add_to(contribution, sink.view, call);
  const int64_t sizes[] = {1, contribution.size()};
  if (contribution.dtype != sink.view.dtype)
    return scale(rows(contribution, Layout(sizes)), 1, rows(sink.view, Layout(sizes)), call);
  std::memcpy(sink.view.data, contribution.data, size_t(contribution.size()) * size_of(contribution.dtype));
}

}  // namespace qkv::nn
