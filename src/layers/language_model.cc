// A decoder-only Transformer.
#include <algorithm>

#include "core/format.h"
#include "qkv/heads.h"
#include "qkv/init.h"
#include "qkv/models.h"

namespace qkv::nn {
namespace {

LanguageModel::Options checked(const LanguageModel::Options& o) {
  for (const auto& [name, n] :
       {std::pair{"vocabulary", o.vocabulary}, std::pair{"context", o.context}, std::pair{"width", o.width},
        std::pair{"layers", o.layers}, std::pair{"heads", o.heads}})
    if (n < 1) option_error("LanguageModel: {} is {}, expected 1 or more", name, n);
  return o;
}

/// The formula of layer n: what was given, causal, and what its positions add.
Attention formula_of(const LanguageModel::Options& o, int64_t n) {
  Attention a = o.attention.empty() ? Attention{} : o.attention[size_t(n) % o.attention.size()];
  a.visible(Causal{});
  if (o.positions == Positions::kAlibi) a.score(Alibi{});
  if (o.positions == Positions::kT5) a.score(Bias{});
  return a;
}

TransformerLayer::Options layer_of(const LanguageModel::Options& o, int64_t n) {
  TransformerLayer::Options layer{.self = {.width = o.width,
                                           .heads = o.heads,
                                           .key_heads = o.key_heads,
                                           .has_query_bias = o.has_bias,
                                           .has_key_bias = o.has_bias,
                                           .has_value_bias = o.has_bias,
                                           .has_out_bias = o.has_bias,
                                           .formula = formula_of(o, n),
                                           .dtype = o.dtype},
                                  .hidden = o.hidden,
                                  .activation = o.activation,
                                  .is_gated = o.is_gated,
                                  .has_bias = o.has_bias,
                                  .norm = o.norm,
                                  .norm_has_bias = o.has_bias,
                                  .dropout = o.dropout};
  if (o.positions == Positions::kRotary) layer.self.rotary.emplace(RotaryOptions{.dim = o.width / o.heads});
  return layer;
}

std::optional<Parameter> matrix_if(bool is_wanted, DType type, int64_t rows, int64_t columns) {
  if (!is_wanted) return std::nullopt;
  return std::optional<Parameter>(std::in_place, type, std::vector{rows, columns});
}

}  // namespace

LanguageModel::LanguageModel(const Options& options)
    : options_(checked(options)),
      token_embedding_(options.dtype, {options.vocabulary, options.width}),
      position_embedding_(
          matrix_if(options.positions == Positions::kLearned, options.dtype, options.context, options.width)),
      relative_table_(
          matrix_if(options.positions == Positions::kT5, options.dtype, T5Buckets{}.buckets, options.heads)),
      head_(matrix_if(!options.ties_weights, options.dtype, options.vocabulary, options.width)) {
  const Options& o = options_;
  if (o.positions == Positions::kSinusoidal) {
    sinusoids_ = Array(o.dtype, {o.context, o.width});
    sinusoidal({}, sinusoids_.view());
  }
  if (o.positions == Positions::kAlibi) {
    alibi_slopes_ = Array(DType::kFloat32, {o.heads});
    std::ranges::copy(alibi_slopes(int(o.heads)), static_cast<float*>(alibi_slopes_.data()));
  }
  for (int64_t n = 0; n < o.layers; ++n) layers_.push_back(std::make_unique<TransformerLayer>(layer_of(o, n)));
  norm_ =
      std::make_unique<Norm>(Norm::Options{.dim = o.width, .kind = o.norm, .has_bias = o.has_bias, .dtype = o.dtype});
}

void LanguageModel::initialise(uint64_t seed) {
  uint32_t tensor = 0;
  visit("", [&](const std::string& name, Parameter& p) {
    const RandomStream stream{.seed = seed, .tensor = tensor++};
    if (p.value.shape().size() < 2) return;  // gains are ones, biases zeros
    const bool writes_residual = name.ends_with("out_proj.weight") || name.ends_with("linear2.weight");
    if (writes_residual) gpt2_residual(p.value.view(), options_.layers, stream);
    else fill_normal(p.value.view(), 0.02, stream);
    p.changed();
  });
}

Variable LanguageModel::embedded(Tape& tape, View<const int32_t> ids) {
  if (ids.rank != 2 || ids.shape[1] > options_.context)
    shape_error("LanguageModel: ids is {}, expected {{B, L}} with L of at most {}, the context", ids, options_.context);
  Variable x = embed(tape, ids, token_embedding_);
  if (position_embedding_) x = add_rows(tape, x, *position_embedding_);
  if (options_.positions == Positions::kSinusoidal) x = add_rows(tape, x, sinusoids_.view());
  return dropout(tape, x, options_.dropout);
}

AttentionCall LanguageModel::call_of(Tape& tape, int64_t length) {
  AttentionCall call;
  if (options_.positions == Positions::kAlibi) call.masks.alibi_slopes = alibi_slopes_.view();
  if (relative_table_)
    call.bias =
        t5_bias(tape, {.sides = T5Buckets::Sides::kPast}, {.queries = length, .keys = length}, *relative_table_);
  return call;
}

Variable LanguageModel::hidden(Tape& tape, View<const int32_t> ids) {
  Variable x = embedded(tape, ids);
  const TransformerLayer::Call call{.self = call_of(tape, ids.shape[1])};
  for (const auto& layer : layers_) x = (*layer)(tape, x, call);
  return (*norm_)(tape, x);
}

Variable LanguageModel::logits(Tape& tape, View<const int32_t> ids) { return linear(tape, hidden(tape, ids), head()); }

Variable LanguageModel::loss(Tape& tape, View<const int32_t> ids, View<const int32_t> targets,
                             const TargetOptions& options) {
  const Variable x = hidden(tape, ids);
  constexpr int64_t kFewClasses = 1024;  // logits that are kept cost less than computing them twice
  if (options_.vocabulary <= kFewClasses) return cross_entropy(tape, linear(tape, x, head()), targets, options);
  return linear_cross_entropy(tape, x, head(), {}, targets, options);
}

void LanguageModel::visit(const std::string& prefix, const Visitor& f) {
  f(prefix + "token_embedding.weight", token_embedding_);
  if (position_embedding_) f(prefix + "position_embedding.weight", *position_embedding_);
  if (relative_table_) f(prefix + "relative_table.weight", *relative_table_);
  for (size_t n = 0; n < layers_.size(); ++n) layers_[n]->visit(prefix + "layers." + std::to_string(n) + ".", f);
  norm_->visit(prefix + "norm.", f);
  if (head_) f(prefix + "head.weight", *head_);
}

}  // namespace qkv::nn
