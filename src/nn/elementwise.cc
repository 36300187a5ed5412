#include "nn/elementwise.h"

#include "kernels/elementwise.h"
#include "nn/check.h"
#include "nn/rows.h"
#include "qkv/dropout.h"

namespace qkv::nn {
namespace {

/// f(x, n, out, first row, first column) for pieces of x and of out.
template <class T, class F>
void map(const View<const void>& x, const View<void>& out, Grid grid, const Call& call, const F& f) {
  for_pieces(call, grid, [&](int64_t row, int64_t column, int64_t n) {
    T wide[kPiece], results[kPiece];
    const Block<T> to = place(out, row, column, n, results);
    f(read(x, row, column, 1, n, wide).data, n, to.data, row, column);
    finish(out, row, column, 1, n, to);
  });
}

void check_dropout(const DropoutOptions& o, const View<const void>& x) {
  if (!(o.probability >= 0 && o.probability <= 1))
    option_error("dropout: probability is {}, expected 0 to 1; 0.1 drops a tenth", o.probability);
  if (o.layer < 0) option_error("dropout: layer is {}, expected 0 or more; number the layers", o.layer);
  if (o.first_row < 0 || o.first_row + x.shape[0] > INT32_MAX)
    option_error("dropout: rows {} to {}, expected them in [0, 2^31); use another layer or seed for the rest",
                 o.first_row, o.first_row + x.shape[0]);
  if (x.shape[1] > INT32_MAX)
    shape_error("dropout: x has shape {}, expected fewer than 2^31 columns; view it as more rows", x);
}

}  // namespace

void add(View<const void> x, View<const void> y, View<void> out, const Call& call) {
  const check::Caller caller = check::matrix("add", "x", x);
  check::matrix(caller, "y", y, x.shape[0], x.shape[1]);
  check::matrix(caller, "out", out, x.shape[0], x.shape[1]);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    map<T>(x, out, Grid(x, x, y, out), call, [&](const T* from, int64_t n, T* to, int64_t row, int64_t column) {
      T wide[kPiece];
      kernels::elementwise_kernels<T>().add(from, read(y, row, column, 1, n, wide).data, n, to);
    });
  });
}

void scale(View<const void> x, double factor, View<void> out, const Call& call) {
  const check::Caller caller = check::matrix("scale", "x", x);
  check::matrix(caller, "out", out, x.shape[0], x.shape[1]);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    map<T>(x, out, Grid(x, x, out), call, [&](const T* from, int64_t n, T* to, int64_t, int64_t) {
      kernels::elementwise_kernels<T>().scale(from, T(factor), n, to);
    });
  });
}

void dropout(View<const void> x, View<void> y, const DropoutOptions& o, const Call& call) {
  const check::Caller caller = check::matrix("dropout", "x", x);
  check::matrix(caller, "y", y, x.shape[0], x.shape[1]);
  check_dropout(o, x);
  const uint64_t threshold = dropout_threshold(o.probability);
  const double factor = o.probability < 1 ? 1 / (1 - o.probability) : 0;
  // Attention draws for heads from 0 on.
  const int32_t head = -1 - o.layer;
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    map<T>(x, y, Grid(x), call, [&](const T* from, int64_t n, T* to, int64_t row, int64_t column) {
      uint64_t keep[kPiece / 64];
      const auto place_in_whole = int32_t(o.first_row + row);
      kernels::dropout_kernel()({o.seed, threshold, 0, int32_t(column), 1, &head, &place_in_whole},
                                int(ceil_div(n, 64)), keep);
      kernels::elementwise_kernels<T>().drop(from, keep, T(factor), n, to);
    });
  });
}

}  // namespace qkv::nn
