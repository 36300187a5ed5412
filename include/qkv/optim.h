// Optimisers and learning rates.
//
//   qkv::nn::Optimiser optimiser(qkv::nn::parameters_of(model), {.kind = qkv::nn::OptimiserKind::kAdamW, .weight_decay = 0.1});
//   const qkv::nn::Schedule schedule{.kind = qkv::nn::ScheduleKind::kCosine, .peak = 1e-3, .warmup = 100, .steps = 2000};
//   optimiser.step({.learning_rate = schedule.at(step), .clip_norm = 1});
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/autograd.h"

namespace qkv::nn {

/// A parameter of a model and its name.
struct NamedParameter {
  std::string name;
  Parameter* parameter = nullptr;
};

/// All parameters of a layer or model, in the order in which it shows them.
template <class Layer> std::vector<NamedParameter> parameters_of(Layer& layer) {
  std::vector<NamedParameter> all;
  layer.visit("", [&](const std::string& name, Parameter& p) { all.push_back({name, &p}); });
  return all;
}

enum class ScheduleKind : uint8_t {
  kConstant,
  kLinear,            ///< from peak to last in a straight line
  kCosine,            ///< from peak to last along half a cosine (Loshchilov, Hutter 2017, without restarts)
  kInverseSquareRoot  ///< peak sqrt(warmup / step), of Vaswani et al. 2017, 5.3; needs a warm-up
};

/// The learning rate of each step: rises in a straight line for `warmup` steps, from peak / warmup to peak, then as `kind` says,
/// until step `steps`, from which on it is `last`.
struct QKV_EXPORT Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double peak = 1e-3, last = 0;
  int64_t warmup = 0, steps = 0;
  /// Of the step with this number, counted from 0. Throws OptionError for numbers that cannot be meant.
  double at(int64_t step) const;
};

enum class OptimiserKind : uint8_t {
  kSgd,   ///< as torch.optim.SGD
  kAdam,  ///< Kingma, Ba 2015; weight decay is part of the gradient
  kAdamW  ///< Loshchilov, Hutter 2019; decoupled
};

/// Changes parameters by their gradients. Weight decay acts on parameters with `decays` alone.
class QKV_EXPORT Optimiser {
 public:
  struct Options {
    OptimiserKind kind = OptimiserKind::kAdamW;
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
    double momentum = 0;  ///< of SGD
    bool is_nesterov = false;
  };
  /// The parameters stay where they are as long as it lives. Throws OptionError for numbers that cannot be meant.
  Optimiser(std::vector<NamedParameter>, const Options&);

  struct Step {
    double learning_rate = 1e-3;
    double clip_norm = 0;       ///< gradients are scaled so that their norm together is at most this; 0: they are not
    double gradient_scale = 1;  ///< they are multiplied by it before: 1 / (batches added up, loss scale)
  };
  struct Taken {
    double gradient_norm = 0;  ///< of all together, after gradient_scale, before clipping
    bool is_finite = true;     ///< false: a gradient is not, and nothing was changed
  };
  /// One step, after which gradients are forgotten. Parameters without a gradient stay as they are.
  Taken step(const Step&, const Call& = {});
  void forget_gradients();
  /// Steps taken so far.
  int64_t steps() const { return steps_; }

  /// Everything that a continued run needs: "first.NAME", "second.NAME" (Adam), "velocity.NAME" (SGD), like the parameters in
  /// shape and type. Absent before the first step.
  void visit_state(const std::function<void(const std::string& name, Array&)>&);
  /// Memory for that state, and the number of steps that led to it: to be filled by whoever reads a checkpoint.
  void prepare_state(int64_t steps);

 private:
  struct State {
    Array first, second;
  };
  double norm(const Call&) const;
  void step_one(size_t n, const Step&, double scale, const Call&);
  std::vector<NamedParameter> parameters_;
  std::vector<State> states_;
  Options options_;
  int64_t steps_ = 0;
};

}  // namespace qkv::nn
