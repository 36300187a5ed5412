// A language model that learns a text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "qkv/models.h"
#include "qkv/train.h"
#include "qkv/training/alphabet.h"

namespace qkv::cli {

struct TextOptions {
  std::string file;                    ///< names the text in messages
  bool is_bytes = false;               ///< tokens are bytes instead of characters
  int64_t batch = 12;                  ///< sequences of a batch, of the model's context
  double held_out = 0.1;               ///< share of the text, at its end, that is not trained on
  int64_t overfit = 0;                 ///< above 0: so many sequences, always the same, trained and evaluated on
  nn::LanguageModel::Options model{};  ///< but for the vocabulary
};

/// Next-token prediction on pieces of a text that begin anywhere.
class TextTask : public nn::Task {
 public:
  /// Throws FileError: no UTF-8, or too short for a piece to learn and one to evaluate on.
  TextTask(std::string_view text, const TextOptions&, uint64_t seed);
  /// The model of a checkpoint, to generate with. Throws FileError.
  static std::unique_ptr<TextTask> load(const std::string& path);

  nn::Variable loss(nn::Tape&, uint64_t seed, uint64_t batch) override;
  /// "loss" in nats a token, "bits_per_byte": over pieces of the held-out part, side by side, of all of it or evenly spread.
  nn::Metrics evaluate(nn::Tape&) override;
  void visit(const nn::Visitor& f) override { model_->visit("", f); }
  std::string configuration() const override;
  int64_t batch_tokens() const override { return batch_size() * model_->options().context; }

  nn::LanguageModel& model() { return *model_; }
  const Alphabet& alphabet() const { return alphabet_; }
  /// Tokens to learn, and held out.
  int64_t training_tokens() const { return int64_t(split_); }
  int64_t held_out_tokens() const { return int64_t(tokens_.size() - split_); }

 private:
  TextTask() = default;
  int64_t batch_size() const { return options_.overfit > 0 ? options_.overfit : options_.batch; }
  void take(int64_t row, size_t first);
  double loss_of_pieces(nn::Tape&, const std::vector<size_t>& firsts);
  TextOptions options_;
  Alphabet alphabet_;
  std::vector<int32_t> tokens_, ids_, targets_;
  size_t split_ = 0;
  double bytes_per_token_ = 1;
  std::unique_ptr<nn::LanguageModel> model_;
};

}  // namespace qkv::cli
