// Whole Transformers.
//
//   qkv::nn::LanguageModel model({.vocabulary = 65, .context = 64, .width = 128, .layers = 4, .heads = 4});
//   model.initialise(seed);
//   qkv::nn::Tape tape;
//   tape.backward(model.loss(tape, ids, targets));                        // ids, targets {B, L}
#pragma once
#include <string>
#include <vector>

#include "qkv/transformer.h"

namespace qkv::nn {

struct SessionParts;

/// A decoder that predicts each next token: embeddings, layers with causal attention, a norm, and a last product.
class QKV_EXPORT LanguageModel {
 public:
  using Options = TransformerOptions;
  /// Zeros. Throws OptionError.
  explicit LanguageModel(const Options&);

  /// See Initialiser.
  void initialise(uint64_t seed);

  /// ids {B, L}, contiguous, L at most context -> {B, L, width}, after the last norm.
  Variable hidden(Tape&, View<const int32_t> ids);
  /// {B, L, vocabulary}
  Variable logits(Tape&, View<const int32_t> ids);
  /// The mean cross-entropy of the targets {B, L}, in nats.
  Variable loss(Tape&, View<const int32_t> ids, View<const int32_t> targets, const TargetOptions& = {});
  void visit(const std::string& prefix, const Visitor&);
  void visit_attention(const std::string& prefix, const AttentionVisitor&);
  const Options& options() const { return stack_.options(); }

 private:
  friend struct SessionParts;
  Rows head() { return head_ ? Rows(*head_) : Rows(token_embedding_); }
  TransformerStack stack_;
  Parameter token_embedding_;  ///< {vocabulary, width}
  std::optional<Parameter> head_;
};

/// How a text is written token by token.
struct DecodeOptions {
  int32_t begin = 0;    ///< the token before the first
  int32_t end = 1;      ///< the token after the last
  int64_t longest = 0;  ///< tokens that are written at most, the end included; 0: as many as the context has
  DType storage = DType::kFloat32;  ///< as TapeOptions
  Call call{};
};

/// Where attention weights of a call go: of layer n {B, heads, rows, columns}; absent views: nowhere.
struct AttentionMaps {
  std::span<const View<void>> encoder{}, decoder{}, cross{};
};

/// An encoder reads a source, a decoder writes a target and looks at what the encoder made of it. Vaswani et al. 2017.
///
///   EncoderDecoder model({.decoder = {.vocabulary = 30, .context = 12, .width = 64}});          // one vocabulary for both
///   model.loss(tape, {source, source_lengths}, target, next_tokens);
class QKV_EXPORT EncoderDecoder {
 public:
  struct Options {
    TransformerOptions decoder{};   ///< the encoder's too, but for what follows
    int64_t source_vocabulary = 0;  ///< 0: that of the target, and one embedding for both
    int64_t source_context = 0;     ///< 0: that of the target
    int64_t encoder_layers = 0;     ///< 0: as many as the decoder has
    std::vector<Attention> encoder_attention{},
        cross_attention{};  ///< as TransformerOptions::attention; no mask is added
  };
  /// Zeros. Throws OptionError.
  explicit EncoderDecoder(const Options&);

  /// See Initialiser.
  void initialise(uint64_t seed);

  struct Source {
    View<const int32_t> ids{};      ///< {B, S}, contiguous; behind an entry's end any id of the vocabulary
    View<const int32_t> lengths{};  ///< {B}: tokens of each entry; absent: all of them
  };
  /// {B, S, width}: what the decoder looks at.
  Variable encode(Tape&, const Source&, std::span<const View<void>> weights = {});
  /// target {B, L}: begins with a token that means the beginning -> {B, L, vocabulary}, row l of the token after target[l].
  Variable logits(Tape&, const Source&, View<const int32_t> target, const AttentionMaps& = {});
  /// The mean cross-entropy of `targets` {B, L}, in nats; those behind an entry's end are TargetOptions::ignored.
  Variable loss(Tape&, const Source&, View<const int32_t> target, View<const int32_t> targets,
                const TargetOptions& = {});

  /// The likeliest next token again and again, of equal ones the lowest: what was written for each entry, without begin and end.
  /// Throws ShapeError, OptionError.
  std::vector<std::vector<int32_t>> greedy(const Source&, const DecodeOptions&);
  void visit(const std::string& prefix, const Visitor&);
  void visit_attention(const std::string& prefix, const AttentionVisitor&);
  const Options& options() const { return options_; }

 private:
  friend struct SessionParts;
  Rows head() { return head_ ? Rows(*head_) : Rows(token_embedding_); }
  Variable hidden(Tape&, const Source&, View<const int32_t> target, const AttentionMaps&);
  Options options_;
  TransformerStack encoder_, decoder_;
  Parameter token_embedding_;  ///< {vocabulary, width}
  std::optional<Parameter> source_embedding_, head_;
};

}  // namespace qkv::nn
