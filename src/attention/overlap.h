// Outputs that would be written over something that is still read, or twice.
#pragma once
#include "core/workspace.h"
#include "qkv/backward.h"

namespace qkv::check {

/// Refuses what is certain: an output whose elements share memory, or that shares an element with another tensor of the
/// call. Tensors that interleave (q, k and v of one buffer, out as every second row) pass. Throws OptionError.
void apart(const char* function, const Inputs&, const Outputs&, CallArena&);
void apart(const char* function, const Inputs&, const Upstream&, const Gradients&, CallArena&);

/// Whether any output is asked for; one of size 0 is.
bool asks_for_anything(const Outputs&);

}  // namespace qkv::check
