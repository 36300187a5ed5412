// Activations as operations.
#include "nn/activation.h"

#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "qkv/operations.h"

namespace qkv::nn {

Variable activate(Tape& tape, Activation f, const Variable& x) {
  const Layout matrix = matrix_layout("activate", x.layout());
  const Variable y = tape.make(x.layout(), x.dtype());
  if (!tape.is_recording()) {
    activation_forward(f, rows(x.value(), matrix), rows(y.to_write(), matrix), {}, tape.call());
    return y;
  }
  const Variable slope = tape.make(x.layout(), x.dtype());
  activation_forward(f, rows(x.value(), matrix), rows(y.to_write(), matrix), rows(slope.to_write(), matrix),
                     tape.call());
  tape.record({y}, {x}, [&tape, x, dy = y, slope, matrix] {
    into_sink(tape, x, [&](View<void> dx) {
      activation_backward(rows(slope.value(), matrix), rows(dy.gradient(), matrix), rows(dx, matrix), tape.call());
    });
  });
  return y;
}

Variable activate_gated(Tape& tape, Activation f, const Variable& x) {
  const Layout matrix = matrix_layout("activate_gated", x.layout());
  if (matrix.shape[1] % 2 != 0)
    shape_error("activate_gated: x is {}, expected an even last axis, whose halves are multiplied", x.layout());
  Layout half = x.layout();
  half.shape[size_t(half.rank) - 1] /= 2;
  const Variable y = tape.make(half, x.dtype());
  const Layout of_y = matrix_layout("activate_gated", y.layout());
  gated_forward(f, rows(x.value(), matrix), rows(y.to_write(), of_y), tape.call());
  tape.record({y}, {x}, [&tape, f, x, y, matrix, of_y] {
    into_sink(tape, x, [&](View<void> dx) {
      gated_backward(f, rows(x.value(), matrix), rows(y.gradient(), of_y), rows(dx, matrix), tape.call());
    });
  });
  return y;
}

}  // namespace qkv::nn
