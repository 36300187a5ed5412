// Activations and their gradients, plain and gated.
#pragma once
#include "kernels/activation.h"
#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv::nn {

/// At -inf and +inf they and their derivatives have their limits; NaN stays NaN.
/// Errors in units in the last place, over [-8, 8]: f at most 6 of max(|f|, |x| / 16), f' at most 4 of max(|f'|, 1 / 4).
const char* name(Activation);  ///< "gelu_tanh"

/// y = f(x).  x, y {rows, columns}, contiguous columns; float32, float64, float16 or bfloat16, also mixed, float64 with float64
/// alone; y may be x. Where `slope` {rows, columns} is given, f'(x) is written there: with it backward is one product, and x is
/// needed no more, so that what is kept is as large as x, and both passes of gelu take two thirds of the time.
/// Throws ShapeError, DtypeError.
void activation_forward(Activation, View<const void> x, View<void> y, View<void> slope = {}, const Call& = {});

/// dx = dy f'(x).  x, dy, dx {rows, columns}; dx may be dy or x. Keeps nothing but x, which may be its producer's output.
void activation_backward(Activation, View<const void> x, View<const void> dy, View<void> dx, const Call& = {});

/// dx = dy slope, with the slope that activation_forward() gave.
void activation_backward(View<const void> slope, View<const void> dy, View<void> dx, const Call& = {});

/// y = f(a) b for rows x = {a | b}.  x {rows, 2 columns}, y {rows, columns}.  GEGLU with gelu, SwiGLU with silu, ReGLU with relu
/// (Shazeer 2020); what his papers call the gate is a.
void gated_forward(Activation, View<const void> x, View<void> y, const Call& = {});

/// dx = {dy b f'(a) | dy f(a)}.  x, dx {rows, 2 columns}, dy {rows, columns}; dx may be x. From x alone: f(a) and f'(a), which
/// both are needed, would be twice as much to keep, and making them again costs less than reading them from memory.
void gated_backward(Activation, View<const void> x, View<const void> dy, View<void> dx, const Call& = {});

}  // namespace qkv::nn
