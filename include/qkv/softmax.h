// Softmax and its logarithms over any axis of a tensor, with a mask. Right where naive code overflows.
#pragma once
#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv {

/// y = exp(x - log_sum_exp(x)) along `axis` over the kept elements; 0 where `keep` is false, and everywhere in a line
/// that keeps nothing. x, y: same shape, rank 1 to 4, any strides, float32, float64, float16 or bfloat16 (each may have its
/// own); y may be x. keep: bool, each axis 1 or full, absent: all. axis may be negative (-1: the last).
/// -inf is an ordinary smallest score, and a line of nothing else counts as one that keeps nothing; a kept NaN or +inf
/// makes its line NaN. Sums are made in float, of float64 in double.
/// Throws ShapeError, DtypeError, OptionError.
QKV_EXPORT void softmax(View<const void> x, View<void> y, int axis = -1, View<const bool> keep = {}, const Call& = {});

/// y = x - log_sum_exp(x) along `axis`; -inf where `keep` is false. Otherwise like softmax.
QKV_EXPORT void log_softmax(View<const void> x, View<void> y, int axis = -1, View<const bool> keep = {},
                            const Call& = {});

/// y = log(sum(exp(x))) along `axis`, -inf of nothing. y: the shape of x with size 1 at `axis`.
QKV_EXPORT void log_sum_exp(View<const void> x, View<void> y, int axis = -1, View<const bool> keep = {},
                            const Call& = {});

}  // namespace qkv
