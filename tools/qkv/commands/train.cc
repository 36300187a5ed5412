// qkv train: models that learn.
#include <chrono>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "qkv/commands/choice.h"
#include "qkv/commands/commands.h"
#include "qkv/commands/watch.h"
#include "qkv/error.h"
#include "qkv/see_json.h"
#include "qkv/training/model_json.h"
#include "qkv/training/text_file.h"
#include "qkv/training/text_task.h"

namespace qkv::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  qkv train text --data shakespeare.txt --out model     (2,000 steps of a model of 0.8 million parameters: minutes)
  qkv train text --data poems.txt --context 128 --positions rope --steps 5000 --out poems
  qkv train text --data log.bin --tokens bytes --attention "window:63,0; softmax" --out log
  qkv train text --data shakespeare.txt --overfit 8 --steps 200     (does the model learn at all?)

The folder gets last.safetensors (with the optimiser's state), best.safetensors (lowest loss on the held-out part) and
metrics.jsonl (a line of JSON for each step). Ctrl-C ends after the step and saves; the same command goes on from there with
the bits of a training that did not stop.)";

struct Options {
  std::string data, out, attention;
  bool is_bytes = false, json = false;
  TextOptions text{.file = {}, .model = {.context = 64, .width = 128, .layers = 4, .heads = 4}};
  nn::TrainOptions train{.steps = 2000, .evaluate_every = 250, .save_every = 250};
  double rate = 1e-3, last_rate = 1e-4;
  int64_t warmup = 100;
};

/// "window:63,0; softmax": the formulas of the layers.
std::vector<Attention> attentions_of(const std::string& text) {
  std::vector<Attention> all;
  for (size_t at = 0; at <= text.size() && !text.empty();) {
    const size_t end = std::min(text.find(';', at), text.size());
    std::string_view part = std::string_view(text).substr(at, end - at);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    all.push_back(Attention::parse(part));
    at = end + 1;
  }
  return all;
}

std::string time_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  return seconds < 5400 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

/// What the line on the terminal says, and how fast it goes.
class Speed {
 public:
  std::string text(const nn::Progress& p, int64_t tokens) {
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (first_ < 0) first_ = p.step - 1;
    const double a_step = now / double(p.step - first_);
    if (p.evaluation) held_out_ = fmt::format(", held out {:.4f}", p.evaluation->at("loss"));
    return fmt::format("step {} of {}, loss {:.4f}{}, {:.0f} tokens/s, {} left", p.step, p.steps, p.loss, held_out_,
                       double(tokens) / a_step, time_text(a_step * double(p.steps - p.step)));
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t first_ = -1;
  std::string held_out_;
};

/// Trains; Ctrl-C ends it after the step.
nn::Trained run(nn::Task& task, nn::TrainOptions options, Watch& watch) {
  nn::Trained trained;
  Speed speed;
  watch.save([&](const std::stop_token& stop) {
    options.call.stop = stop;
    trained = nn::train(task, options, [&](const nn::Progress& p) {
      watch.progress().begin(speed.text(p, task.batch_tokens() * options.batches));
      for (const std::string& name : p.unreached) watch.say(fmt::format("no gradient reaches {}", name));
    });
    if (trained.is_complete) return;
    watch.say_when_interrupted(
        options.folder.empty()
            ? fmt::format("interrupted at step {}; without --out nothing was kept", trained.step)
            : fmt::format("interrupted at step {}; the same command goes on from there", trained.step));
    throw Cancelled("interrupted");
  });
  return trained;
}

std::string summary(const Options& o, const nn::Trained& t) {
  std::string text = fmt::format("step {}: loss on the held-out part {:.4f} nats a token", t.step, t.last.at("loss"));
  if (t.last.contains("bits_per_byte")) text += fmt::format(", {:.4f} bits a byte", t.last.at("bits_per_byte"));
  text += fmt::format("\nbest: {:.4f} at step {:.0f}\n", t.best.at("loss"), t.best.at("step"));
  if (!o.out.empty())
    text += fmt::format("{0}/best.safetensors is the best model, {0}/metrics.jsonl has every step\n", o.out);
  return text;
}

Answer train_text(Options o, Watch& watch) {
  o.text.file = o.data, o.text.is_bytes = o.is_bytes;
  o.text.model.attention = attentions_of(o.attention);
  TextTask task(read_text(o.data), o.text, o.train.seed);
  o.train.folder = o.out;
  o.train.optimiser = {.beta2 = 0.99, .weight_decay = 0.1};
  o.train.schedule = {.kind = nn::ScheduleKind::kCosine,
                      .peak = o.rate,
                      .last = std::min(o.rate, o.last_rate),
                      .warmup = std::min(o.warmup, o.train.steps - 1),
                      .steps = o.train.steps};
  const nn::Trained t = run(task, o.train, watch);
  if (o.json)
    return {text_of({{"step", t.step},
                     {"last", t.last},
                     {"best", t.best},
                     {"training_tokens", task.training_tokens()},
                     {"held_out_tokens", task.held_out_tokens()},
                     {"model", nlohmann::json::parse(task.configuration())["model"]}})};
  return {summary(o, t)};
}

void add_model_options(CLI::App& command, Options& o) {
  const char* group = "Model";
  nn::LanguageModel::Options& m = o.text.model;
  const auto size = [&](const char* name, int64_t& value, const char* help) {
    command.add_option(name, value, help)->check(at_least(1))->capture_default_str()->type_name("N")->group(group);
  };
  size("--context", m.context, "tokens that it sees at most");
  size("--width", m.width, "numbers of a token between layers");
  size("--layers", m.layers, "how many layers");
  size("--heads", m.heads, "heads of each attention");
  command.add_option("--key-heads", m.key_heads, "heads of keys and values; 0: as many as of queries")
      ->check(not_negative())
      ->type_name("N")
      ->group(group);
  add_choice<nn::Positions>(command, "--positions", m.positions,
                            {{"none", nn::Positions::kNone},
                             {"sinusoidal", nn::Positions::kSinusoidal},
                             {"learned", nn::Positions::kLearned},
                             {"rope", nn::Positions::kRotary},
                             {"alibi", nn::Positions::kAlibi},
                             {"t5", nn::Positions::kT5}},
                            "how it knows where a token stands; absent: learned")
      ->group(group);
  command
      .add_option("--attention", o.attention,
                  "formulas of the layers, \"window:63,0; softmax\", repeated over the depth")
      ->group(group);
  command.add_option("--dropout", m.dropout, "share of numbers that are dropped in training")->group(group);
}

void add_training_options(CLI::App& command, Options& o) {
  const char* group = "Training";
  const auto size = [&](const char* name, int64_t& value, const char* help) {
    command.add_option(name, value, help)->check(at_least(1))->capture_default_str()->type_name("N")->group(group);
  };
  size("--steps", o.train.steps, "how many steps");
  size("--batch", o.text.batch, "sequences of a batch");
  size("--batches", o.train.batches, "batches whose gradients are added up for a step");
  size("--evaluate-every", o.train.evaluate_every, "steps between looks at the held-out part");
  size("--save-every", o.train.save_every, "steps between checkpoints");
  command.add_option("--rate", o.rate, "highest learning rate")->capture_default_str()->group(group);
  command.add_option("--last-rate", o.last_rate, "learning rate at the end")->capture_default_str()->group(group);
  command.add_option("--warmup", o.warmup, "steps in which the learning rate rises")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  command.add_option("--clip", o.train.clip_norm, "largest norm of the gradients; 0: any")
      ->capture_default_str()
      ->group(group);
  add_choice<DType>(command, "--storage", o.train.storage,
                    {{"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}, {"float16", DType::kFloat16}},
                    "type of activations; 16 bits halve their memory")
      ->group(group);
  command.add_option("--overfit", o.text.overfit, "so many sequences, always the same: the loss must fall to 0")
      ->check(not_negative())
      ->type_name("N")
      ->group(group);
  command.add_option("--seed", o.train.seed, "of first weights, batches and dropout")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_train(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("train", "Train a model");
  command->require_subcommand(1);
  command->footer(kExamples);
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* text = command->add_subcommand("text", "A language model on the characters or bytes of a text");
  text->footer(kExamples);
  text->add_option("--data", o.data, "the text, UTF-8")->required()->type_name("FILE");
  text->add_option("--out", o.out, "folder of the model; absent: nothing is kept")->type_name("DIR");
  add_choice<bool>(*text, "--tokens", o.is_bytes, {{"characters", false}, {"bytes", true}}, "absent: characters");
  text->add_flag("--json", o.json, "print the result as JSON");
  add_model_options(*text, o);
  add_training_options(*text, o);
  text->callback([options, &run] { run = [options](Watch& watch) { return train_text(*options, watch); }; });
}

}  // namespace qkv::cli
