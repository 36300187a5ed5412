// Whole Transformers.
//
//   qkv::nn::LanguageModel model({.vocabulary = 65, .context = 64, .width = 128, .layers = 4, .heads = 4});
//   model.initialise(seed);
//   qkv::nn::Tape tape;
//   tape.backward(model.loss(tape, ids, targets));                        // ids, targets {B, L}
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "qkv/layers.h"

namespace qkv::nn {

/// How a model knows where a token stands.
enum class Positions : uint8_t {
  kNone,
  kSinusoidal,  ///< added to embeddings: Vaswani et al. 2017
  kLearned,     ///< a table, added to embeddings
  kRotary,      ///< queries and keys are turned: Su et al. 2021
  kAlibi,       ///< scores fall with the distance: Press et al. 2022
  kT5           ///< a learned bias for each head and bucket of distances, shared by all layers: Raffel et al. 2020
};

/// A decoder that predicts each next token: embeddings, layers with causal attention, a norm, and a last product.
class QKV_EXPORT LanguageModel {
 public:
  struct Options {
    int64_t vocabulary = 0, context = 0;  ///< tokens that there are, and that it sees at most
    int64_t width = 128, layers = 4, heads = 4;
    int64_t key_heads = 0, hidden = 0;  ///< 0: heads; 4 width
    Positions positions = Positions::kLearned;
    /// Who sees whom and how scores become weights, beside causal; layer n has formula n modulo their number; none: plain.
    std::vector<Attention> attention{};
    Activation activation = Activation::kGelu;
    bool is_gated = false;
    NormKind norm = NormKind::kLayer;
    bool has_bias = false;     ///< of products and norms
    bool ties_weights = true;  ///< the last product has the embedding's weights (Press, Wolf 2017)
    double dropout = 0;
    DType dtype = DType::kFloat32;
  };
  /// Zeros. Throws OptionError.
  explicit LanguageModel(const Options&);

  /// Normal numbers of deviation 0.02, of what writes into the residual stream 0.02 / sqrt(2 layers); biases 0, gains 1.
  /// Radford et al. 2019.
  void initialise(uint64_t seed);

  /// ids {B, L}, contiguous, L at most context -> {B, L, width}, after the last norm.
  Variable hidden(Tape&, View<const int32_t> ids);
  /// {B, L, vocabulary}
  Variable logits(Tape&, View<const int32_t> ids);
  /// The mean cross-entropy of the targets {B, L}, in nats.
  Variable loss(Tape&, View<const int32_t> ids, View<const int32_t> targets, const TargetOptions& = {});
  void visit(const std::string& prefix, const Visitor&);
  const Options& options() const { return options_; }

 private:
  Rows head() { return options_.ties_weights ? Rows(token_embedding_) : Rows(*head_); }
  Variable embedded(Tape&, View<const int32_t> ids);
  AttentionCall call_of(Tape&, int64_t length);
  Options options_;
  Parameter token_embedding_;  ///< {vocabulary, width}
  std::optional<Parameter> position_embedding_, relative_table_, head_;
  Array sinusoids_, alibi_slopes_;
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  std::unique_ptr<Norm> norm_;
};

}  // namespace qkv::nn
