#include "nn/activation.h"

#include "kernels/elementwise.h"
#include "nn/check.h"
#include "nn/rows.h"

namespace qkv::nn {
namespace {

template <class T> struct Scratch { T x[kPiece], other[kPiece], y[kPiece], second[kPiece]; };

void check_gated(const check::Caller& caller, const View<const void>& x, const char* name, const View<const void>& y) {
  if (x.shape[1] % 2 != 0)
    shape_error("{}: x has shape {}, expected an even number of columns, {{a | b}}; pass both halves", caller.function,
                x);
  check::matrix(caller, name, y, x.shape[0], x.shape[1] / 2);
}

}  // namespace

const char* name(Activation f) {
  constexpr const char* kNames[] = {"relu", "gelu", "gelu_tanh", "silu"};
  return kNames[int(f)];
}

void activation_forward(Activation f, View<const void> x, View<void> y, View<void> slope, const Call& call) {
  const check::Caller caller = check::matrix("activation_forward", "x", x);
  check::matrix(caller, "y", y, x.shape[0], x.shape[1]);
  if (slope) check::matrix(caller, "slope", slope, x.shape[0], x.shape[1]);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    const auto& kernels = kernels::activation_kernels<T>(f);
    for_pieces(call, Grid(x, x, y, slope), [&](int64_t row, int64_t column, int64_t n) {
      Scratch<T> s;
      const T* from = read(x, row, column, 1, n, s.x).data;
      const Block<T> to = place(y, row, column, n, s.y);
      if (!slope) {
        kernels.value(from, n, to.data);
      } else {
        const Block<T> derivative = place(slope, row, column, n, s.second);
        kernels.value_and_slope(from, n, to.data, derivative.data);
        finish(slope, row, column, 1, n, derivative);
      }
      finish(y, row, column, 1, n, to);
    });
  });
}

void activation_backward(Activation f, View<const void> x, View<const void> dy, View<void> dx, const Call& call) {
  const check::Caller caller = check::matrix("activation_backward", "x", x);
  check::matrix(caller, "dy", dy, x.shape[0], x.shape[1]);
  check::matrix(caller, "dx", dx, x.shape[0], x.shape[1]);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    const auto& kernels = kernels::activation_kernels<T>(f);
    for_pieces(call, Grid(x, x, dy, dx), [&](int64_t row, int64_t column, int64_t n) {
      Scratch<T> s;
      const Block<T> to = place(dx, row, column, n, s.y);
      kernels.gradient(read(x, row, column, 1, n, s.x).data, read(dy, row, column, 1, n, s.other).data, n, to.data);
      finish(dx, row, column, 1, n, to);
    });
  });
}

void activation_backward(View<const void> slope, View<const void> dy, View<void> dx, const Call& call) {
  const check::Caller caller = check::matrix("activation_backward", "slope", slope);
  check::matrix(caller, "dy", dy, slope.shape[0], slope.shape[1]);
  check::matrix(caller, "dx", dx, slope.shape[0], slope.shape[1]);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    for_pieces(call, Grid(slope, slope, dy, dx), [&](int64_t row, int64_t column, int64_t n) {
      Scratch<T> s;
      const Block<T> to = place(dx, row, column, n, s.y);
      kernels::elementwise_kernels<T>().multiply(read(slope, row, column, 1, n, s.x).data,
                                                 read(dy, row, column, 1, n, s.other).data, n, to.data);
      finish(dx, row, column, 1, n, to);
    });
  });
}

void gated_forward(Activation f, View<const void> x, View<void> y, const Call& call) {
  const check::Caller caller = check::matrix("gated_forward", "x", x);
  check_gated(caller, x, "y", y);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    for_pieces(call, Grid(y), [&](int64_t row, int64_t column, int64_t n) {
      Scratch<T> s;
      const T* a = read(x, row, column, 1, n, s.x).data;
      const T* b = read(x, row, column + y.shape[1], 1, n, s.other).data;
      const Block<T> to = place(y, row, column, n, s.y);
      kernels::activation_kernels<T>(f).gated(a, b, n, to.data);
      finish(y, row, column, 1, n, to);
    });
  });
}

void gated_backward(Activation f, View<const void> x, View<const void> dy, View<void> dx, const Call& call) {
  const check::Caller caller = check::matrix("gated_backward", "x", x);
  check_gated(caller, x, "dy", dy);
  check::matrix(caller, "dx", dx, x.shape[0], x.shape[1]);
  const int64_t half = dy.shape[1];
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    for_pieces(call, Grid(dy), [&](int64_t row, int64_t column, int64_t n) {
      Scratch<T> s;
      T scratch[kPiece];
      const T* a = read(x, row, column, 1, n, s.x).data;
      const T* b = read(x, row, column + half, 1, n, s.other).data;
      const T* g = read(dy, row, column, 1, n, scratch).data;
      const Block<T> da = place(dx, row, column, n, s.y), db = place(dx, row, column + half, n, s.second);
      kernels::activation_kernels<T>(f).gated_gradient(a, b, g, n, da.data, db.data);
      finish(dx, row, column, 1, n, da);
      finish(dx, row, column + half, 1, n, db);
    });
  });
}

}  // namespace qkv::nn
