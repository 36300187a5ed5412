#include "train/checkpoint.h"

#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "qkv/error.h"
#include "qkv/io.h"
#include "qkv/parameters.h"

namespace qkv::nn {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kConfiguration = "qkv.configuration";
constexpr const char* kTraining = "qkv.training";
constexpr const char* kOptimiser = "optimiser.";

/// What two runs must have in common to be one.
Json settings_of(const TrainOptions& o) {
  return {{"seed", o.seed},
          {"batches", o.batches},
          {"storage", name(o.storage)},
          {"clip_norm", o.clip_norm},
          {"schedule", {int(o.schedule.kind), o.schedule.peak, o.schedule.last, o.schedule.warmup, o.schedule.steps}},
          {"optimiser",
           {int(o.optimiser.kind), o.optimiser.beta1, o.optimiser.beta2, o.optimiser.epsilon, o.optimiser.weight_decay,
            o.optimiser.momentum, o.optimiser.is_nesterov}}};
}

std::string shape_of(const Array& a) {
  std::string text = "{";
  for (const int64_t n : a.shape()) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "} of " + name(a.dtype());
}

void fill(const Safetensors& file, const std::string& path, const std::string& name, Array& to) {
  const Array from = file.read(name);
  if (from.shape() != to.shape() || from.dtype() != to.dtype())
    throw FileError(
        fmt::format("{} has {} as {}, expected {}: it is of another model", path, name, shape_of(from), shape_of(to)));
  std::memcpy(to.data(), from.data(), to.bytes());
}

void fill_parameters(const Safetensors& file, const std::string& path, Task& task) {
  for (const auto& [name, p] : parameters_of(task)) {
    if (!file.contains(name)) throw FileError(fmt::format("{} has no {}: it is of another model", path, name));
    fill(file, path, name, p->value);
    p->changed();
  }
}

const std::string& text_of(const Safetensors& file, const std::string& path, const char* key) {
  const auto at = file.metadata().find(key);
  if (at == file.metadata().end())
    throw FileError(fmt::format("{} is no checkpoint of a training: it has no text {}", path, key));
  return at->second;
}

void expect_configuration(const Safetensors& file, const std::string& path, const Task& task) {
  const std::string& theirs = text_of(file, path, kConfiguration);
  if (theirs != task.configuration())
    throw FileError(fmt::format("{} is of another model; it has {}, and this one is {}; choose another folder", path,
                                theirs, task.configuration()));
}

}  // namespace

std::string last_checkpoint(const std::string& folder) { return folder + "/last.safetensors"; }
std::string best_checkpoint(const std::string& folder) { return folder + "/best.safetensors"; }

void save_training(const std::string& path, Task& task, Optimiser& optimiser, const TrainingState& state,
                   const TrainOptions& options) {
  std::vector<NamedTensor> tensors = tensors_of(parameters_of(task));
  optimiser.visit_state([&](const std::string& name, Array& a) { tensors.push_back({kOptimiser + name, a.view()}); });
  const Json training{{"settings", settings_of(options)},
                      {"step", state.step},
                      {"optimiser_steps", optimiser.steps()},
                      {"loss_scale", state.loss_scale},
                      {"good_steps", state.good_steps},
                      {"best", state.best},
                      {"last", state.last}};
  write_safetensors(path, tensors, {{kConfiguration, task.configuration()}, {kTraining, training.dump()}});
}

void save_model(const std::string& path, Task& task, const Metrics& metrics) {
  write_safetensors(path, tensors_of(parameters_of(task)),
                    {{kConfiguration, task.configuration()}, {"qkv.metrics", Json(metrics).dump()}});
}

TrainingState load_training(const std::string& path, Task& task, Optimiser& optimiser, const TrainOptions& options) {
  const Safetensors file(path);
  expect_configuration(file, path, task);
  TrainingState state;
  try {
    const Json training = Json::parse(text_of(file, path, kTraining));
    if (training.at("settings") != settings_of(options))
      throw FileError(fmt::format("{} is of a training with {}, and this one has {}; choose another folder", path,
                                  training.at("settings").dump(), settings_of(options).dump()));
    state.step = training.at("step").get<int64_t>();
    state.loss_scale = training.at("loss_scale").get<double>();
    state.good_steps = training.at("good_steps").get<int64_t>();
    state.best = training.at("best").get<Metrics>(), state.last = training.at("last").get<Metrics>();
    const auto steps = training.at("optimiser_steps").get<int64_t>();
    if (state.step < 0 || steps < 0 || steps > state.step)
      throw FileError(fmt::format("{} says step {}, of which {} were taken; it is damaged", path, state.step, steps));
    optimiser.prepare_state(steps);
  } catch (const nlohmann::json::exception&) {
    throw FileError(fmt::format("{} does not say where its training stands; it is damaged", path));
  }
  fill_parameters(file, path, task);
  optimiser.visit_state([&](const std::string& name, Array& a) {
    if (!file.contains(kOptimiser + name))
      throw FileError(fmt::format("{} has no {}{}; it is damaged", path, kOptimiser, name));
    fill(file, path, kOptimiser + name, a);
  });
  return state;
}

void load_parameters(Task& task, const std::string& path) {
  const Safetensors file(path);
  expect_configuration(file, path, task);
  fill_parameters(file, path, task);
}

std::string read_configuration(const std::string& path) { return text_of(Safetensors(path), path, kConfiguration); }

}  // namespace qkv::nn
