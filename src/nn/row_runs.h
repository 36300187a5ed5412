// Sums over rows, one a column: the same bits for any number of threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/ceil_div.h"
#include "core/workspace.h"
#include "kernels/elementwise.h"
#include "nn/rows.h"

namespace qkv::nn {

/// How rows are cut for sums over them: blocks of 32, whose sums are made in T, and runs of blocks, each a work item, whose sums
/// are made in double. At most 64 runs, so that what they hold is as much as 64 rows.
struct RowRuns {
  static constexpr int kBlock = 32;
  int64_t rows, of_a_run;

  RowRuns(int64_t all_rows, int64_t columns) : rows(all_rows) {
    const int64_t worth = ceil_div(kElementsOfAnItem, std::max<int64_t>(1, columns));
    of_a_run = round_up(std::max({worth, ceil_div(rows, 64), int64_t{1}}), kBlock);
  }
  int64_t runs() const { return ceil_div(rows, of_a_run); }
  /// f(first row, rows) for every block of a run.
  template <class F> void blocks(int64_t run, const F& f) const {
    const int64_t end = std::min(rows, (run + 1) * of_a_run);
    for (int64_t r = run * of_a_run; r < end; r += kBlock) f(r, int(std::min<int64_t>(kBlock, end - r)));
  }
};

/// Numbers [from, to) of a vector become, or have added, the sums over `runs` of sums[run * stride + c], in order.
template <class T>
void add_up_runs(const double* sums, int64_t runs, int64_t stride, int64_t from, int64_t to, const View<void>& into,
                 Into how) {
  double total[kPiece];
  T numbers[kPiece], old[kPiece];
  for (int64_t c = from; c < to; c += kPiece) {
    const int n = int(std::min(kPiece, to - c));
    std::copy_n(sums + c, n, total);
    for (int64_t run = 1; run < runs; ++run)
      kernels::elementwise_kernels<double>().add(total, sums + run * stride + c, n, total);
    void* first = static_cast<char*>(into.data) + c * int64_t(size_of(into.dtype));
    const auto& rows = kernels::row_kernels<T>();
    if (how == Into::kAdd) rows.load(first, into.dtype, 0, 1, 1, n, old, 0);
    for (int i = 0; i < n; ++i) numbers[i] = T(how == Into::kAdd ? double(old[i]) + total[i] : total[i]);
    rows.store(numbers, 0, 1, n, first, into.dtype, 0, 1);
  }
}

/// Sets a vector to 0, or leaves it: what a sum over no rows does.
inline void add_nothing(const View<void>& into, Into how) {
  if (how == Into::kWrite && into.size() > 0) std::memset(into.data, 0, size_t(into.size()) * size_of(into.dtype));
}

}  // namespace qkv::nn
