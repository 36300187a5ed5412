// Rotary positions as an operation.
#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "qkv/operations.h"

namespace qkv::nn {

Variable rotate(Tape& tape, const Rotary& rotary, const Variable& x, const RowPositions& positions) {
  const Layout sizes(std::span<const int64_t>(x.layout().shape).first(size_t(x.layout().rank)));
  const Variable y = tape.make(sizes, x.dtype());
  rotary_forward(rotary, x.value(), positions, y.to_write(), tape.call());
  tape.record({y}, {x}, [&tape, rotary, x, y, positions] {
    const Variable::Sink sink = x.sink();
    if (!sink.view) return;
    if (!sink.add) return rotary_backward(rotary, y.gradient(), positions, sink.view, tape.call());
    const Variable turned = tape.make(y.layout(), y.dtype());
    rotary_backward(rotary, y.gradient(), positions, turned.to_write(), tape.call());
    add_to(turned.value(), sink.view, tape.call());
  });
  return y;
}

}  // namespace qkv::nn
