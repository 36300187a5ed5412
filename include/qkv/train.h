// Training: steps, evaluations, checkpoints, and going on where it stopped.
//
//   struct Copying : qkv::nn::Task { ... };
//   qkv::nn::train(task, {.steps = 1000, .folder = "run"}, [](const qkv::nn::Progress& p) { std::printf("%f\n", p.loss); });
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "qkv/layers.h"
#include "qkv/optim.h"

namespace qkv::nn {

/// Numbers by their names, such as "loss" and "exact_match".
using Metrics = std::map<std::string, double, std::less<>>;

/// What is learned: a model, batches for it, and a measure of how good it is.
class QKV_EXPORT Task {
 public:
  virtual ~Task();
  /// The loss of a batch that is a function of the seed and its number alone, so that training can go on anywhere. It may keep the
  /// batch until its next call.
  virtual Variable loss(Tape&, uint64_t seed, uint64_t batch) = 0;
  /// On data that is not trained on; "loss" must be among the metrics. The same whenever it is called.
  virtual Metrics evaluate(Tape&) = 0;
  /// Shows all parameters.
  virtual void visit(const Visitor&) = 0;
  /// What model this is, as text: it lies in checkpoints, and a checkpoint of another one is refused.
  virtual std::string configuration() const = 0;
  /// Tokens, or whatever speed is told in, of a batch.
  virtual int64_t batch_tokens() const = 0;
};

/// All parameters of a task, in the order in which it shows them.
QKV_EXPORT std::vector<NamedParameter> parameters_of(Task&);

struct TrainOptions {
  int64_t steps = 1000;
  int64_t batches = 1;  ///< whose gradients are added up for a step
  Schedule schedule{};
  Optimiser::Options optimiser{};
  double clip_norm = 1;
  int64_t evaluate_every = 250;  ///< steps; the last step is evaluated too
  int64_t save_every = 250;      ///< steps between checkpoints, if there is a folder
  uint64_t seed = 1;
  DType storage =
      DType::kFloat32;   ///< of activations: float16 and bfloat16 halve their memory; float16 scales the loss
  std::string folder{};  ///< last.safetensors, best.safetensors, metrics.jsonl; empty: nothing is written
  Call call{};           ///< a requested stop ends training after the step, with a checkpoint
};

/// What happened in one step.
struct Progress {
  int64_t step = 0, steps = 0;  ///< counted from 1
  double loss = 0, learning_rate = 0, gradient_norm = 0;
  double seconds = 0, tokens_per_second = 0;  ///< of this step alone
  std::optional<Metrics> evaluation{};
  bool is_best = false;                  ///< the evaluation has the lowest loss so far
  std::vector<std::string> unreached{};  ///< in the first step: parameters without a gradient
};

/// How training ended.
struct Trained {
  int64_t step = 0;  ///< steps done, those of earlier runs included
  bool is_complete = false;
  Metrics best{};  ///< the evaluation with the lowest loss, and its "step"
  Metrics last{};  ///< the last one
};

/// Trains until `steps`. Where the folder has a last.safetensors of this task, goes on from there, with the same bits as without the
/// pause, however it ended. `tell` is called after every step.
/// Throws FileError: a checkpoint that is damaged or of another model, or that cannot be written; OptionError: numbers that cannot be
/// meant; Error where the loss is no number: what was saved before stays.
QKV_EXPORT Trained train(Task&, const TrainOptions&, const std::function<void(const Progress&)>& tell = {});

/// Fills the parameters of a task from a checkpoint, last.safetensors or best.safetensors. Throws FileError.
QKV_EXPORT void load_parameters(Task&, const std::string& path);
/// The configuration that lies in a checkpoint. Throws FileError.
QKV_EXPORT std::string read_configuration(const std::string& path);

}  // namespace qkv::nn
