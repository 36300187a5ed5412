// Dense layers and sums as operations.
#include "autograd/dense.h"
#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "nn/elementwise.h"
#include "qkv/operations.h"

namespace qkv::nn {

Variable linear(Tape& tape, const Variable& x, const Rows& weight, const Rows& bias) {
  const Dense dense(tape, "linear", weight, bias, x.dtype());
  const Layout in = matrix_layout("linear", x.layout());
  if (in.shape[1] != dense.in())
    shape_error("linear: x is {} and weight {}, expected {} columns of x", x.layout(), dense.weight().layout(),
                dense.in());
  Layout sizes = x.layout();
  sizes.shape[size_t(sizes.rank) - 1] = dense.out();
  const Variable y = tape.make(sizes, x.dtype());
  const Layout out = matrix_layout("linear", y.layout());
  dense.forward(rows(x.value(), in), rows(y.to_write(), out));
  tape.record({y}, {x, dense.weight(), dense.bias()}, [dense, x, y, in, out] {
    Dense::Sinks sinks = dense.sinks(x);
    sinks.x.view = rows_if(sinks.x.view, in);
    dense.backward(rows(x.value(), in), rows(y.gradient(), out), sinks);
  });
  return y;
}

Variable add(Tape& tape, const Variable& a, const Variable& b) {
  if (a.layout().rank != b.layout().rank || a.layout().shape != b.layout().shape)
    shape_error("add: a is {} and b {}, expected one shape", a.layout(), b.layout());
  if (a.dtype() != b.dtype()) dtype_error("add: a is {} and b {}, expected one type", a.dtype(), b.dtype());
  const Layout matrix = matrix_layout("add", a.layout());
  if (!is_contiguous(b.layout())) shape_error("add: b {} is not contiguous; copy it", b.layout());
  const Variable y = tape.make(a.layout(), a.dtype());
  add(rows(a.value(), matrix), rows(b.value(), matrix), rows(y.to_write(), matrix), tape.call());
  tape.record({y}, {a, b}, [&tape, a, b, y] {
    for (const Variable& x : {a, b})
      if (const Variable::Sink sink = x.sink(); sink.view) copy_or_add(y.gradient(), sink, tape.call());
  });
  return y;
}

}  // namespace qkv::nn
