#include "qkv/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "core/format.h"
#include "train/checkpoint.h"
#include "train/metrics_file.h"

namespace qkv::nn {

Task::~Task() = default;

std::vector<NamedParameter> parameters_of(Task& task) {
  std::vector<NamedParameter> all;
  task.visit([&](const std::string& name, Parameter& p) { all.push_back({name, &p}); });
  return all;
}

namespace {

// Loss scaling as in Micikevicius et al. 2018, "Mixed precision training", 3.2.
constexpr double kFirstLossScale = 65536, kMostLossScale = 16777216;
constexpr int64_t kStepsBeforeDoubling = 2000;
constexpr int kMostOverflows = 40;  // in a row: then it is not the scale

void check(const TrainOptions& o) {
  const auto expect = [](const char* name, int64_t n) {
    if (n < 1) option_error("train: {} is {}, expected 1 or more", name, n);
  };
  expect("steps", o.steps), expect("batches", o.batches);
  expect("evaluate_every", o.evaluate_every), expect("save_every", o.save_every);
  if (!(o.clip_norm >= 0)) option_error("train: clip_norm is {}, expected 0 (none) or more", o.clip_norm);
  if (!is_floating(o.storage)) dtype_error("train: storage is {}, expected a floating type", o.storage);
  o.schedule.at(0);
}

/// One training, from its beginning or from where another one stopped.
class Run {
 public:
  Run(Task& task, const TrainOptions& options)
      : task_(task),
        options_(options),
        parameters_(parameters_of(task)),
        optimiser_(parameters_, options.optimiser),
        tape_({.call = {.executor = options.call.executor, .workspace = workspace()},
               .seed = options.seed,
               .storage = options.storage}),
        quiet_({.call = {.executor = options.call.executor, .workspace = workspace()},
                .training = false,
                .storage = options.storage}) {
    if (parameters_.empty()) option_error("train: the task has no parameters");
    if (options.storage == DType::kFloat16) state_.loss_scale = kFirstLossScale;
    if (options.folder.empty()) return;
    std::error_code failure;
    std::filesystem::create_directories(options.folder, failure);
    if (std::filesystem::exists(last_checkpoint(options.folder)))
      state_ = load_training(last_checkpoint(options.folder), task, optimiser_, options);
    metrics_.emplace(options.folder + "/metrics.jsonl", state_.step);
  }

  Trained run(const std::function<void(const Progress&)>& tell) {
    while (state_.step < options_.steps && !options_.call.stop.stop_requested()) {
      const Progress progress = step();
      if (metrics_) metrics_->write(progress);
      const bool is_time = state_.step % options_.save_every == 0 || state_.step == options_.steps;
      if (!options_.folder.empty() && (is_time || options_.call.stop.stop_requested())) save();
      if (tell) tell(progress);
    }
    return {state_.step, state_.step >= options_.steps, state_.best, state_.last};
  }

 private:
  Workspace* workspace() { return options_.call.workspace ? options_.call.workspace : &own_workspace_; }

  Progress step() {
    const auto start = std::chrono::steady_clock::now();
    Progress p{.step = state_.step + 1, .steps = options_.steps};
    p.learning_rate = options_.schedule.at(state_.step);
    for (int tries = 0;; ++tries) {
      p.loss = gradients();
      if (!std::isfinite(p.loss)) fail_of_loss(p);
      if (state_.step == 0) p.unreached = unreached();
      const auto taken = optimiser_.step({.learning_rate = p.learning_rate,
                                          .clip_norm = options_.clip_norm,
                                          .gradient_scale = 1 / (double(options_.batches) * state_.loss_scale)},
                                         tape_.call());
      p.gradient_norm = taken.gradient_norm;
      if (taken.is_finite) break;
      if (options_.storage != DType::kFloat16 || tries >= kMostOverflows) fail_of_gradients(p);
      state_.loss_scale /= 2, state_.good_steps = 0;  // the same batches once more
    }
    raise_loss_scale();
    ++state_.step;
    p.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    p.tokens_per_second = double(task_.batch_tokens() * options_.batches) / std::max(p.seconds, 1e-9);
    if (state_.step % options_.evaluate_every == 0 || state_.step == options_.steps) evaluate(p);
    return p;
  }

  /// The mean loss of the step's batches; their gradients are added up.
  double gradients() {
    double sum = 0;
    for (int64_t n = 0; n < options_.batches; ++n) {
      const auto batch = uint64_t(state_.step * options_.batches + n);
      tape_.restart(options_.seed ^ (batch + 1) * 0x9E3779B97F4A7C15);
      const Variable loss = task_.loss(tape_, options_.seed, batch);
      sum += *loss.value().as<const double>().data;
      tape_.backward(loss, state_.loss_scale);
    }
    return sum / double(options_.batches);
  }

  void raise_loss_scale() {
    if (options_.storage != DType::kFloat16 || ++state_.good_steps < kStepsBeforeDoubling) return;
    state_.loss_scale = std::min(2 * state_.loss_scale, kMostLossScale), state_.good_steps = 0;
  }

  void evaluate(Progress& p) {
    Metrics metrics = task_.evaluate(quiet_);
    if (!metrics.contains("loss")) option_error("train: the task's evaluation has no \"loss\"");
    p.evaluation = metrics;
    metrics["step"] = double(state_.step);
    p.is_best = state_.best.empty() || metrics.at("loss") < state_.best.at("loss");
    state_.last = metrics;
    if (!p.is_best) return;
    state_.best = metrics;
    if (!options_.folder.empty()) save_model(best_checkpoint(options_.folder), task_, metrics);
  }

  void save() { save_training(last_checkpoint(options_.folder), task_, optimiser_, state_, options_); }

  std::vector<std::string> unreached() const {
    std::vector<std::string> names;
    for (const auto& [name, p] : parameters_)
      if (!p->is_reached) names.push_back(name);
    return names;
  }

  [[noreturn]] void fail_of_loss(const Progress& p) const {
    throw Error(fmt::format("train: the loss of step {} is {}, at a learning rate of {:g}; {}", p.step, p.loss,
                            p.learning_rate, what_is_kept()));
  }
  [[noreturn]] void fail_of_gradients(const Progress& p) const {
    throw Error(fmt::format(
        "train: the gradients of step {} have the norm {}, at a loss of {:g} and a learning rate of {:g}; {}", p.step,
        p.gradient_norm, p.loss, p.learning_rate, what_is_kept()));
  }
  std::string what_is_kept() const {
    if (options_.folder.empty() || state_.step < options_.save_every)
      return "lower the learning rate, or raise the warm-up";
    return fmt::format("{} is of an earlier step; go on from it with a lower learning rate",
                       last_checkpoint(options_.folder));
  }

  Task& task_;
  TrainOptions options_;
  std::vector<NamedParameter> parameters_;
  Optimiser optimiser_;
  Workspace own_workspace_;
  Tape tape_, quiet_;
  TrainingState state_;
  std::optional<MetricsFile> metrics_;
};

}  // namespace

Trained train(Task& task, const TrainOptions& options, const std::function<void(const Progress&)>& tell) {
  check(options);
  return Run(task, options).run(tell);
}

}  // namespace qkv::nn
