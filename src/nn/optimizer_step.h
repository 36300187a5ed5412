// One step of an optimiser, and what comes before it: the norm of all gradients, clipping, loss scaling.
#pragma once
#include <cstdint>

#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv::nn {

/// Flat arrays {count}: the parameters, float32 or float64 (master weights, if the network computes with a copy), and their
/// gradient, of any floating type that widens to that. Where `copy` is given, of any floating type, the new parameters are
/// rounded into it once, to nearest even.
struct Step {
  View<void> parameters;
  View<const void> gradient;
  View<void> copy{};
};

struct SgdOptions {
  double learning_rate = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  double gradient_scale =
      1;  ///< the gradient is multiplied by it first: clipping and unscaling cost no pass of their own
};

/// g = gradient + weight_decay p;  velocity = g in the first step, then momentum velocity + (1 - dampening) g;
/// p -= learning_rate (velocity, or with nesterov g + momentum velocity; without momentum g).
/// velocity {count} of the parameters' type, absent where momentum is 0; `number` counts steps from 1. As PyTorch's SGD (Sutskever
/// et al. 2013 but for where the learning rate stands). Throws ShapeError, DtypeError, OptionError.
void sgd_step(const Step&, View<void> velocity, int64_t number, const SgdOptions&, const Call& = {});

enum class Decay : uint8_t {
  kDecoupled,  ///< AdamW: p *= 1 - learning_rate weight_decay (Loshchilov, Hutter 2019)
  kInGradient  ///< Adam: g += weight_decay p
};
struct AdamOptions {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  Decay decay = Decay::kDecoupled;
  double gradient_scale = 1;  ///< as in SgdOptions
};
/// Running means of the gradient and of its square, {count} each, of the parameters' type; zeros before the first step.
struct Moments {
  View<void> first, second;
};

/// m = m + (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2;
/// p -= learning_rate / (1 - beta1^number) m / (sqrt(v) / sqrt(1 - beta2^number) + epsilon)
/// `number` counts steps from 1. Kingma, Ba 2015, with epsilon where PyTorch has it: added to the corrected root.
void adam_step(const Step&, const Moments&, int64_t number, const AdamOptions&, const Call& = {});

/// The sum of squares of {count} numbers, in double, in chunks of 4096 that are added in order: the same bits for any number of
/// threads. The norm of all gradients is the root of the sum of these. Infinite or NaN if a number is.
double sum_of_squares(View<const void> x, const Call& = {});

/// What gradients are multiplied by so that their norm is at most `max_norm`: min(1, max_norm / (norm + 1e-6)), as PyTorch.
double clip_factor(double norm, double max_norm);

/// x *= factor, in place: clipping.  x {count}
void scale_in_place(View<void> x, double factor, const Call& = {});

/// x *= factor, and whether all results are finite: undoing loss scaling, where a step with others is left out.
bool unscale(View<void> x, double factor, const Call& = {});

}  // namespace qkv::nn
