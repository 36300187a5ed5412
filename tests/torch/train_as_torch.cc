// Trains a LanguageModel on batches from a file, for tests that compare with PyTorch.
//   train_as_torch IN.safetensors OUT.safetensors
// In: state.NAME of every parameter, ids and targets {steps, B, L} int32, and metadata: the sizes of the model, of AdamW and of
// its schedule, threads. Out: losses {steps}, seconds {steps} of each step.
#include <chrono>
#include <cstdio>
#include <exception>

#include "qkv/models.h"
#include "qkv/parameters.h"
#include "settings.h"

namespace qkv::torch_tests {
namespace {

nn::LanguageModel::Options model_of(const Settings& s) {
  return {.vocabulary = s.whole("vocabulary"),
          .context = s.whole("context"),
          .width = s.whole("width"),
          .layers = s.whole("layers"),
          .heads = s.whole("heads"),
          .dtype = s.text_or("dtype", "float32") == "float64" ? DType::kFloat64 : DType::kFloat32};
}

nn::Schedule schedule_of(const Settings& s) {
  return {.kind = nn::ScheduleKind::kCosine,
          .peak = s.number("learning_rate"),
          .last = s.number("last_learning_rate"),
          .warmup = s.whole("warmup"),
          .steps = s.whole("steps")};
}

/// Batch n of {steps, B, L}.
View<const int32_t> batch(const Array& all, int64_t n) {
  const auto& shape = all.shape();
  return {static_cast<const int32_t*>(all.data()) + n * shape[1] * shape[2], {shape[1], shape[2]}};
}

void run(const std::string& in, const std::string& out) {
  const Safetensors file(in);
  const Settings s(file);
  nn::LanguageModel model(model_of(s));
  nn::load_parameters(model, file, {.prefix = "state."});
  const nn::Schedule schedule = schedule_of(s);
  nn::Optimiser optimiser(nn::parameters_of(model),
                          {.beta2 = s.number("beta2"), .weight_decay = s.number("weight_decay")});
  const Array ids = file.read("ids"), targets = file.read("targets");
  const int64_t steps = ids.shape()[0];
  Array losses(DType::kFloat64, {steps}), seconds(DType::kFloat64, {steps});

  ThreadPool pool(int(s.whole("threads", 1)));
  Workspace workspace;
  const Call call{.executor = &pool, .workspace = &workspace};
  nn::Tape tape({.call = call, .storage = model.options().dtype});
  for (int64_t n = 0; n < steps; ++n) {
    const auto start = std::chrono::steady_clock::now();
    tape.restart(uint64_t(n));
    const nn::Variable loss = model.loss(tape, batch(ids, n), batch(targets, n));
    static_cast<double*>(losses.data())[n] = *loss.value().as<const double>().data;
    tape.backward(loss);
    optimiser.step({.learning_rate = schedule.at(n), .clip_norm = s.number("clip_norm")}, call);
    static_cast<double*>(seconds.data())[n] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const NamedTensor results[] = {{"losses", std::as_const(losses).view()}, {"seconds", std::as_const(seconds).view()}};
  write_safetensors(out, results);
}

}  // namespace
}  // namespace qkv::torch_tests

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fputs("usage: train_as_torch IN.safetensors OUT.safetensors\n", stderr);
    return 2;
  }
  qkv::torch_tests::run(argv[1], argv[2]);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "train_as_torch: %s\n", e.what());
  return 1;
}
