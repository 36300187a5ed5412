// What lies in a training's folder.
#pragma once
#include <cstdint>
#include <string>

#include "qkv/train.h"

namespace qkv::nn {

/// Where training stands, beside parameters and the optimiser's state.
struct TrainingState {
  int64_t step = 0;
  double loss_scale = 1;
  int64_t good_steps = 0;  ///< since the loss scale last changed
  Metrics best{}, last{};
};

std::string last_checkpoint(const std::string& folder);
std::string best_checkpoint(const std::string& folder);

/// Everything that a continued run needs. Appears complete or not at all. Throws FileError.
void save_training(const std::string& path, Task&, Optimiser&, const TrainingState&, const TrainOptions&);
/// Parameters and configuration alone. Throws FileError.
void save_model(const std::string& path, Task&, const Metrics&);
/// The reverse of save_training(). Throws FileError where the file is damaged, of another model or of another training.
TrainingState load_training(const std::string& path, Task&, Optimiser&, const TrainOptions&);

}  // namespace qkv::nn
