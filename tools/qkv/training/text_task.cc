#include "qkv/training/text_task.h"

#include <algorithm>
#include <numbers>

#include <fmt/format.h>

#include "qkv/dropout.h"
#include "qkv/error.h"
#include "qkv/training/model_json.h"

namespace qkv::cli {
namespace {

constexpr int64_t kMostPieces = 480;  // of an evaluation

View<const int32_t> matrix(const std::vector<int32_t>& numbers, int64_t rows, int64_t columns) {
  return {numbers.data(), {rows, columns}};
}

}  // namespace

TextTask::TextTask(std::string_view text, const TextOptions& options, uint64_t seed)
    : options_(options),
      alphabet_(options.is_bytes ? Alphabet::bytes() : Alphabet::of(text, options.file)),
      tokens_(alphabet_.encode(text, options.file)) {
  const auto piece = size_t(options.model.context) + 1;
  if (!(options.held_out > 0 && options.held_out < 1))
    throw OptionError(fmt::format("the held-out share is {}, expected more than 0 and less than 1", options.held_out));
  split_ = tokens_.size() - size_t(double(tokens_.size()) * options.held_out);
  if (split_ < piece || tokens_.size() - split_ < piece)
    throw FileError(fmt::format(
        "{} has {} tokens, of which {} are held out; a context of {} needs at least {} of both: take a longer text or a "
        "shorter context",
        options.file, tokens_.size(), tokens_.size() - split_, options.model.context, piece));
  bytes_per_token_ = double(text.size()) / double(tokens_.size());
  options_.model.vocabulary = alphabet_.size();
  model_ = std::make_unique<nn::LanguageModel>(options_.model);
  model_->initialise(seed);
  ids_.resize(size_t(batch_size() * options.model.context)), targets_ = ids_;
}

std::unique_ptr<TextTask> TextTask::load(const std::string& path) {
  const std::string text = nn::read_configuration(path);
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("kind", "") != "text")
    throw FileError(fmt::format("{} holds no text model", path));
  std::unique_ptr<TextTask> task(new TextTask());
  task->alphabet_ = Alphabet::from(json.value("alphabet", nlohmann::json()));
  task->options_.model = language_model_options(json.value("model", nlohmann::json()));
  if (task->options_.model.vocabulary != task->alphabet_.size())
    throw FileError(fmt::format("{} has a vocabulary of {} and an alphabet of {}; it is damaged", path,
                                task->options_.model.vocabulary, task->alphabet_.size()));
  task->model_ = std::make_unique<nn::LanguageModel>(task->options_.model);
  nn::load_parameters(*task, path);
  return task;
}

std::string TextTask::configuration() const {
  return nlohmann::ordered_json{{"kind", "text"}, {"model", json_of(model_->options())}, {"alphabet", alphabet_.json()}}
      .dump();
}

void TextTask::take(int64_t row, size_t first) {
  const auto length = size_t(model_->options().context);
  std::copy_n(tokens_.begin() + ptrdiff_t(first), length, ids_.begin() + ptrdiff_t(size_t(row) * length));
  std::copy_n(tokens_.begin() + ptrdiff_t(first + 1), length, targets_.begin() + ptrdiff_t(size_t(row) * length));
}

nn::Variable TextTask::loss(nn::Tape& tape, uint64_t seed, uint64_t batch) {
  const int64_t rows = batch_size(), length = model_->options().context;
  const uint64_t places = split_ - size_t(length);
  if (options_.overfit > 0) seed = 0, batch = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto bits = philox({uint32_t(row), uint32_t(batch), uint32_t(batch >> 32), 0x74657874}, seed);
    take(row, size_t((bits[0] | uint64_t{bits[1]} << 32) % places));
  }
  return model_->loss(tape, matrix(ids_, rows, length), matrix(targets_, rows, length));
}

double TextTask::loss_of_pieces(nn::Tape& tape, const std::vector<size_t>& firsts) {
  const int64_t length = model_->options().context;
  double sum = 0;
  for (size_t from = 0; from < firsts.size(); from += size_t(batch_size())) {
    const auto rows = int64_t(std::min(size_t(batch_size()), firsts.size() - from));
    for (int64_t row = 0; row < rows; ++row) take(row, firsts[from + size_t(row)]);
    const nn::Variable loss = model_->loss(tape, matrix(ids_, rows, length), matrix(targets_, rows, length));
    sum += double(rows) * *loss.value().as<const double>().data;
  }
  return sum / double(firsts.size());
}

nn::Metrics TextTask::evaluate(nn::Tape& tape) {
  if (options_.overfit > 0) return {{"loss", *loss(tape, 0, 0).value().as<const double>().data}};
  const auto length = size_t(model_->options().context);
  const size_t there = (tokens_.size() - split_ - 1) / length, used = std::min(there, size_t(kMostPieces));
  std::vector<size_t> firsts;
  for (size_t n = 0; n < used; ++n) firsts.push_back(split_ + there * n / used * length);
  const double nats = loss_of_pieces(tape, firsts);
  return {{"loss", nats}, {"bits_per_byte", nats / std::numbers::ln2 / bytes_per_token_}};
}

}  // namespace qkv::cli
