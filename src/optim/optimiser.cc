#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "nn/optimizer_step.h"
#include "qkv/optim.h"

namespace qkv::nn {
namespace {

View<void> flat(Array& a) {
  const int64_t sizes[] = {a.size()};
  return {a.data(), a.dtype(), Layout(sizes)};
}

void expect_within(const char* name, double x, double low, double high) {
  if (!(x >= low && x <= high)) option_error("Optimiser: {} is {}, expected {} to {}", name, x, low, high);
}

}  // namespace

Optimiser::Optimiser(std::vector<NamedParameter> parameters, const Options& options)
    : parameters_(std::move(parameters)), states_(parameters_.size()), options_(options) {
  constexpr double kBelowOne = 1 - 1e-16, kMost = 1e30;
  expect_within("beta1", options.beta1, 0, kBelowOne), expect_within("beta2", options.beta2, 0, kBelowOne);
  expect_within("epsilon", options.epsilon, 0, kMost), expect_within("weight_decay", options.weight_decay, 0, kMost);
  expect_within("momentum", options.momentum, 0, kBelowOne);
}

double Optimiser::norm(const Call& call) const {
  double sum = 0;
  for (const auto& [name, p] : parameters_)
    if (p->is_reached) sum += sum_of_squares(flat(p->gradient), call);
  return std::sqrt(sum);
}

Optimiser::Taken Optimiser::step(const Step& s, const Call& call) {
  const double norm_now = norm(call) * s.gradient_scale;
  if (!std::isfinite(norm_now)) {
    forget_gradients();
    return {norm_now, false};
  }
  const double scale = s.gradient_scale * (s.clip_norm > 0 ? clip_factor(norm_now, s.clip_norm) : 1);
  if (steps_ == 0) prepare_state(0);
  ++steps_;
  for (size_t n = 0; n < parameters_.size(); ++n)
    if (parameters_[n].parameter->is_reached) step_one(n, s, scale, call);
  forget_gradients();
  return {norm_now, true};
}

void Optimiser::step_one(size_t n, const Step& s, double scale, const Call& call) {
  Parameter& p = *parameters_[n].parameter;
  const nn::Step arrays{flat(p.value), flat(p.gradient)};
  const double decay = p.decays ? options_.weight_decay : 0;
  if (options_.kind == OptimiserKind::kSgd) {
    const View<void> velocity = options_.momentum > 0 ? flat(states_[n].first) : View<void>{};
    sgd_step(arrays, velocity, steps_,
             {.learning_rate = s.learning_rate,
              .momentum = options_.momentum,
              .weight_decay = decay,
              .nesterov = options_.is_nesterov,
              .gradient_scale = scale},
             call);
  } else {
    adam_step(arrays, {flat(states_[n].first), flat(states_[n].second)}, steps_,
              {.learning_rate = s.learning_rate,
               .beta1 = options_.beta1,
               .beta2 = options_.beta2,
               .epsilon = options_.epsilon,
               .weight_decay = decay,
               .decay = options_.kind == OptimiserKind::kAdamW ? Decay::kDecoupled : Decay::kInGradient,
               .gradient_scale = scale},
              call);
  }
  p.changed();
}

void Optimiser::forget_gradients() {
  for (const auto& [name, p] : parameters_) p->forget_gradient();
}

void Optimiser::prepare_state(int64_t steps) {
  steps_ = steps;
  const bool is_adam = options_.kind != OptimiserKind::kSgd;
  for (size_t n = 0; n < parameters_.size(); ++n) {
    const Array& value = parameters_[n].parameter->value;
    if (is_adam || options_.momentum > 0) states_[n].first = Array(value.dtype(), value.shape());
    if (is_adam) states_[n].second = Array(value.dtype(), value.shape());
  }
}

void Optimiser::visit_state(const std::function<void(const std::string& name, Array&)>& f) {
  const bool is_adam = options_.kind != OptimiserKind::kSgd;
  for (size_t n = 0; n < parameters_.size(); ++n) {
    if (states_[n].first.size() > 0) f((is_adam ? "first." : "velocity.") + parameters_[n].name, states_[n].first);
    if (states_[n].second.size() > 0) f("second." + parameters_[n].name, states_[n].second);
  }
}

}  // namespace qkv::nn
