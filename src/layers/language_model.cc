// A decoder-only Transformer.
#include "layers/predict.h"
#include "qkv/models.h"

namespace qkv::nn {

LanguageModel::LanguageModel(const Options& o)
    : stack_(o, TransformerStack::Kind::kDecoder),
      token_embedding_(o.dtype, {o.vocabulary, o.width}),
      head_(matrix_if(!o.ties_weights, o.dtype, o.vocabulary, o.width)) {}

void LanguageModel::initialise(uint64_t seed) {
  Initialiser fill(seed);
  visit("", [&](const std::string& name, Parameter& p) { fill(name, p, stack_.additions()); });
}

Variable LanguageModel::hidden(Tape& tape, View<const int32_t> ids) { return stack_(tape, ids, token_embedding_); }

Variable LanguageModel::logits(Tape& tape, View<const int32_t> ids) { return linear(tape, hidden(tape, ids), head()); }

Variable LanguageModel::loss(Tape& tape, View<const int32_t> ids, View<const int32_t> targets,
                             const TargetOptions& options) {
  return prediction_loss(tape, hidden(tape, ids), head(), targets, options);
}

void LanguageModel::visit(const std::string& prefix, const Visitor& f) {
  f(prefix + "token_embedding.weight", token_embedding_);
  stack_.visit(prefix, f);
  if (head_) f(prefix + "head.weight", *head_);
}

void LanguageModel::visit_attention(const std::string& prefix, const AttentionVisitor& f) {
  stack_.visit_attention(prefix, f);
}

}  // namespace qkv::nn
