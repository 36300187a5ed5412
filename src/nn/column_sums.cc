#include "nn/column_sums.h"

#include <cstring>

#include "nn/check.h"

namespace qkv::nn {
namespace {

template <class T> void run(const View<const void>& x, const View<void>& sums, Into how, const Call& call) {
  const RowRuns cut(x.shape[0], x.shape[1]);
  const int64_t columns = x.shape[1], line = round_up(columns, 8);
  WorkspaceOf workspace(call);
  auto* totals = static_cast<double*>(workspace.impl().call.reserve(size_t(cut.runs() * line) * sizeof(double)));
  const auto& kernels = kernels::elementwise_kernels<T>();
  const size_t wide = x.dtype == kDType<T> ? 0 : RowRuns::kBlock;
  workspace.impl().prepare_leases(at_once(call, cut.runs()), (wide + 1) * size_t(line) * sizeof(T));
  parallel(call, cut.runs(), [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace.impl(), (wide + 1) * size_t(line) * sizeof(T));
    T* block = static_cast<T*>(lease.data());
    double* total = totals + item * line;
    std::fill_n(total, columns, 0.0);
    cut.blocks(item, [&](int64_t first, int rows) {
      std::fill_n(block, columns, T(0));
      const Block<const T> from = read(x, first, 0, rows, columns, block + line);
      kernels.add_rows(from.data, from.stride, rows, columns, block);
      kernels.add_wide(block, columns, total);
    });
  });
  add_up_runs<T>(totals, cut.runs(), line, 0, columns, sums, how);
}

}  // namespace

void add_nothing(const View<void>& into, Into how) {
  if (how == Into::kWrite && into.size() > 0) std::memset(into.data, 0, size_t(into.size()) * size_of(into.dtype));
}

void column_sums(View<const void> x, View<void> sums, Into how, const Call& call) {
  const check::Caller caller = check::matrix("column_sums", "x", x);
  check::vector(caller, "sums", sums, x.shape[1]);
  if (x.size() == 0) return add_nothing(sums, how);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) { run<T>(x, sums, how, call); });
}

}  // namespace qkv::nn
