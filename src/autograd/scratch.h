// Contributions to gradients by functions that only overwrite.
#pragma once
#include "nn/into.h"
#include "qkv/autograd.h"

namespace qkv::nn {

/// What a function that can add is to do with what a sink holds.
inline Into into(const Variable::Sink& sink) { return sink.add ? Into::kAdd : Into::kWrite; }

/// to += from, of one shape, along the last axis contiguous.
void add_to(View<const void> from, View<void> to, const Call&);

/// A contribution that is there already, of the sink's shape, both contiguous; of another type it is rounded once.
void copy_or_add(View<const void> contribution, const Variable::Sink&, const Call&);

/// write(view) writes a contribution to the gradient by x: in place where it is the first, else beside it, and it is added.
template <class F> void into_sink(Tape& tape, const Variable& x, const F& write) {
  const Variable::Sink sink = x.sink();
  if (!sink.view) return;
  if (!sink.add) return write(sink.view);
  const Variable scratch = tape.make(x.layout(), x.dtype());
  write(scratch.to_write());
  add_to(scratch.value(), sink.view, tape.call());
}

}  // namespace qkv::nn
