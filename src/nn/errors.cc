// Mean squared and mean absolute error. See loss.h.
#include "kernels/elementwise.h"
#include "nn/check.h"
#include "nn/loss.h"
#include "nn/rows.h"

namespace qkv::nn {
namespace {

enum class Kind : uint8_t { kSquared, kAbsolute };

template <class T>
double sum_of_errors(Kind kind, const View<const void>& x, const View<const void>& y, const View<void>& dx, T factor,
                     const Call& call) {
  const Grid grid(x);  // not all in one row: how sums are cut depends on the shape alone
  const int64_t of_a_row = ceil_div(grid.columns, kPiece), pieces = grid.rows * of_a_row;
  WorkspaceOf workspace(call);
  auto* sums = static_cast<double*>(workspace.impl().call.reserve(size_t(pieces) * sizeof(double)));
  const auto& kernels = kernels::elementwise_kernels<T>();
  for_pieces(call, grid, [&](int64_t row, int64_t column, int64_t n) {
    T wide_x[kPiece], wide_y[kPiece], wide_dx[kPiece];
    const T *a = read(x, row, column, 1, n, wide_x).data, *b = read(y, row, column, 1, n, wide_y).data;
    sums[row * of_a_row + column / kPiece] =
        (kind == Kind::kSquared ? kernels.squared_difference : kernels.absolute_difference)(a, b, n);
    if (!dx) return;
    const Block<T> to = place(dx, row, column, n, wide_dx);
    (kind == Kind::kSquared ? kernels.difference : kernels.sign)(a, b, factor, n, to.data);
    finish(dx, row, column, 1, n, to);
  });
  double sum = 0;
  for (int64_t p = 0; p < pieces; ++p) sum += sums[p];
  return sum;
}

double error(Kind kind, const View<const void>& x, const View<const void>& y, const View<void>& dx,
             const ErrorOptions& options, const Call& call) {
  const check::Caller caller =
      check::matrix(kind == Kind::kSquared ? "mean_squared_error" : "mean_absolute_error", "x", x);
  check::matrix(caller, "y", y, x.shape[0], x.shape[1]);
  if (dx) check::matrix(caller, "dx", dx, x.shape[0], x.shape[1]);
  if (x.size() == 0) return 0;
  const double scale = detail::reduced(1, x.size(), options.reduction);
  const double factor = options.upstream * scale * (kind == Kind::kSquared ? 2 : 1);
  double sum = 0;
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) { sum = sum_of_errors<T>(kind, x, y, dx, T(factor), call); });
  return detail::reduced(sum, x.size(), options.reduction);
}

}  // namespace

double mean_squared_error(View<const void> x, View<const void> y, View<void> dx, const ErrorOptions& options,
                          const Call& call) {
  return error(Kind::kSquared, x, y, dx, options, call);
}
double mean_absolute_error(View<const void> x, View<const void> y, View<void> dx, const ErrorOptions& options,
                           const Call& call) {
  return error(Kind::kAbsolute, x, y, dx, options, call);
}

}  // namespace qkv::nn
