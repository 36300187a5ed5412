// Layer norm and RMS norm with their gradients.
#pragma once
#include "nn/rows.h"
#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv::nn {

/// What a norm reads: x {rows, dim} with contiguous columns, gain and bias {dim}, of which any may be absent (1 and 0). All of
/// float32, float64, float16 or bfloat16, also mixed, float64 with float64 alone. RMS norm takes no bias.
struct NormInputs {
  View<const void> x, gain{}, bias{};
};
/// What it writes: y {rows, dim}, which may be x; mean and rstd {rows} of the type of arithmetic, for backward. Absent: not wanted.
/// Backward needs x beside them, which its producer mostly holds anyway, and 2 numbers a row (RMS norm: 1): nothing that is kept
/// is as large as y.
struct NormOutputs {
  View<void> y, mean{}, rstd{};
};

/// Normalises each row of x to zero mean and unit variance, then scales and shifts.
///   y = (x - mean) / sqrt(var + epsilon) * gain + bias        (var is the biased estimate)
/// In two passes, of which the second corrects the mean too: no cancellation where |mean| is far above the deviation.
/// Throws ShapeError, DtypeError, OptionError for an epsilon that is negative or no number. Ba, Kiros, Hinton 2016, eq. 4.
void layer_norm_forward(const NormInputs&, const NormOutputs&, double epsilon = 1e-5, const Call& = {});

/// y = x / sqrt(mean(x^2) + epsilon) * gain.  As layer_norm_forward(); no mean is written. Zhang, Sennrich 2019.
void rms_norm_forward(const NormInputs&, const NormOutputs&, double epsilon = 1e-6, const Call& = {});

/// x and gain as in forward, mean and rstd that it wrote, and dy {rows, dim}, the gradient of the loss by y.
struct NormBackwardInputs {
  View<const void> x, gain{}, mean{}, rstd{}, dy{};
};
/// dx {rows, dim}, which may be dy; dgain and dbias {dim}. Absent: not wanted. Each overwritten or added to.
struct NormGradients {
  View<void> dx{}, dgain{}, dbias{};
  Into dx_into = Into::kWrite, parameters_into = Into::kWrite;
};

/// With n = (x - mean) rstd and g = dy gain, averages along a row:
///   dx = rstd (g - average(g) - n average(g n)),   dgain = sum over rows of dy n,   dbias = sum over rows of dy
/// Sums over rows go in blocks of 32 rows, whose sums are added up in double, in an order that depends on the shape alone: the
/// same bits for any number of threads. Throws ShapeError, DtypeError.
void layer_norm_backward(const NormBackwardInputs&, const NormGradients&, const Call& = {});
/// The same without average(g), mean and dbias.
void rms_norm_backward(const NormBackwardInputs&, const NormGradients&, const Call& = {});

}  // namespace qkv::nn
