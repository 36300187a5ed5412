// The gradients of a loss that a backward pass begins with.
#pragma once
#include "qkv/problem.h"

namespace qkv::cli {

/// Sets dout and dlse of a problem that has everything else: dout {B, H, L, Dv} or fewer axes, packed {T, H, Dv}, each axis 1 or
/// full; dlse {B, H, L} or fewer, packed {T, H}, or absent. Either is rounded to the type that backward() wants, with a note
/// where that changes a number. Throws OptionError, ShapeError, DtypeError.
void set_loss(Problem&, View<const void> dout, View<const void> dlse);

}  // namespace qkv::cli
