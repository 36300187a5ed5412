// Stacks of layers.
#include "qkv/transformer.h"

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "layers/predict.h"
#include "qkv/heads.h"
#include "qkv/init.h"

namespace qkv::nn {
namespace {

using Kind = TransformerStack::Kind;

const TransformerOptions& checked(const TransformerOptions& o) {
  for (const auto& [name, n] :
       {std::pair{"vocabulary", o.vocabulary}, std::pair{"context", o.context}, std::pair{"width", o.width},
        std::pair{"layers", o.layers}, std::pair{"heads", o.heads}})
    if (n < 1) option_error("TransformerOptions: {} is {}, expected 1 or more", name, n);
  return o;
}

Attention nth(const std::vector<Attention>& formulas, int64_t n) {
  return formulas.empty() ? Attention{} : formulas[size_t(n) % formulas.size()];
}

/// The formula of layer n: what was given, causal in decoders, and what its positions add.
Attention formula_of(const TransformerOptions& o, Kind kind, int64_t n) {
  Attention a = nth(o.attention, n);
  a.align(Align::kTopLeft);  // behind padding too
  if (kind != Kind::kEncoder) a.visible(Causal{});
  if (o.positions == Positions::kAlibi) a.score(Alibi{});
  if (o.positions == Positions::kT5) a.score(Bias{});
  return a;
}

TransformerLayer::Options layer_of(const TransformerOptions& o, Kind kind, const std::vector<Attention>& cross,
                                   int64_t n) {
  TransformerLayer::Options layer{.self = {.width = o.width,
                                           .heads = o.heads,
                                           .key_heads = o.key_heads,
                                           .has_query_bias = o.has_bias,
                                           .has_key_bias = o.has_bias,
                                           .has_value_bias = o.has_bias,
                                           .has_out_bias = o.has_bias,
                                           .dtype = o.dtype},
                                  .hidden = o.hidden,
                                  .activation = o.activation,
                                  .is_gated = o.is_gated,
                                  .has_bias = o.has_bias,
                                  .norm = o.norm,
                                  .norm_has_bias = o.has_bias,
                                  .dropout = o.dropout};
  if (kind == Kind::kCrossDecoder) {
    layer.cross = layer.self;
    layer.cross->formula = nth(cross, n);
  }
  layer.self.formula = formula_of(o, kind, n);
  if (o.positions == Positions::kRotary) layer.self.rotary.emplace(RotaryOptions{.dim = o.width / o.heads});
  return layer;
}

}  // namespace

void Initialiser::operator()(const std::string& name, Parameter& p, int64_t additions) {
  const RandomStream stream{.seed = seed_, .tensor = tensor_++};
  if (p.value.shape().size() < 2) return;  // gains are ones, biases zeros
  const bool writes_residual = name.ends_with("out_proj.weight") || name.ends_with("linear2.weight");
  fill_normal(p.value.view(), writes_residual ? 0.02 / std::sqrt(double(additions)) : 0.02, stream);
  p.changed();
}

TransformerStack::TransformerStack(const TransformerOptions& options, Kind kind, std::vector<Attention> cross)
    : options_(checked(options)),
      kind_(kind),
      position_embedding_(
          matrix_if(options.positions == Positions::kLearned, options.dtype, options.context, options.width)),
      relative_table_(
          matrix_if(options.positions == Positions::kT5, options.dtype, T5Buckets{}.buckets, options.heads)) {
  const TransformerOptions& o = options_;
  if (o.positions == Positions::kSinusoidal) {
    sinusoids_ = Array(o.dtype, {o.context, o.width});
    sinusoidal({}, sinusoids_.view());
  }
  if (o.positions == Positions::kAlibi) {
    alibi_slopes_ = Array(DType::kFloat32, {o.heads});
    std::ranges::copy(alibi_slopes(int(o.heads)), static_cast<float*>(alibi_slopes_.data()));
  }
  for (int64_t n = 0; n < o.layers; ++n)
    layers_.push_back(std::make_unique<TransformerLayer>(layer_of(o, kind, cross, n)));
  norm_ =
      std::make_unique<Norm>(Norm::Options{.dim = o.width, .kind = o.norm, .has_bias = o.has_bias, .dtype = o.dtype});
}

int64_t TransformerStack::additions() const { return options_.layers * (kind_ == Kind::kCrossDecoder ? 3 : 2); }

Variable TransformerStack::embedded(Tape& tape, View<const int32_t> ids, const Rows& tokens, const StackCall& c) {
  if (ids.rank != 2 || ids.shape[1] > options_.context)
    shape_error("TransformerStack: ids is {}, expected {{B, L}} with L of at most {}, the context", ids,
                options_.context);
  Variable x = embed(tape, ids, tokens);
  if (!c.caches.empty()) return add_positions(tape, x, c);
  if (position_embedding_) x = add_rows(tape, x, *position_embedding_);
  if (options_.positions == Positions::kSinusoidal) x = add_rows(tape, x, sinusoids_.view());
  return dropout(tape, x, options_.dropout);
}

TransformerLayer::Call TransformerStack::call_of(Tape& tape, int64_t length, const StackCall& c) {
  TransformerLayer::Call call{.memory = c.memory};
  call.self.masks.key_lengths = c.lengths;
  call.cross.masks.key_lengths = c.memory_lengths;
  if (kind_ == Kind::kCrossDecoder && !c.memory && c.memories.empty())
    option_error("TransformerStack: memory is absent; encode a source");
  if (options_.positions == Positions::kAlibi) call.self.masks.alibi_slopes = alibi_slopes_.view();
  const auto sides = kind_ == Kind::kEncoder ? T5Buckets::Sides::kBoth : T5Buckets::Sides::kPast;
  call.self.cache_rows = c.rows;
  if (relative_table_ && !c.caches.empty())
    call.self.bias_of = [this, &tape](const Inputs& in) { return bias_of(tape, in); };
  else if (relative_table_)
    call.self.bias = t5_bias(tape, {.sides = sides}, {.queries = length, .keys = length}, *relative_table_);
  return call;
}

Variable TransformerStack::operator()(Tape& tape, View<const int32_t> ids, const Rows& tokens, const StackCall& c) {
  for (const auto& [name, n] : {std::pair{"caches", c.caches.size()}, std::pair{"memories", c.memories.size()}})
    if (n != 0 && n != layers_.size())
      option_error("TransformerStack: {} {} and {} layers, expected one for each", n, name, layers_.size());
  Variable x = embedded(tape, ids, tokens, c);
  TransformerLayer::Call call = call_of(tape, ids.shape[1], c);
  const auto nth_view = [](std::span<const View<void>> views, size_t n) {
    return n < views.size() ? views[n] : View<void>{};
  };
  for (size_t n = 0; n < layers_.size(); ++n) {
    call.self.weights = nth_view(c.self_weights, n), call.cross.weights = nth_view(c.cross_weights, n);
    if (!c.caches.empty()) call.self.cache = &c.caches[n];
    if (!c.memories.empty()) call.cross.memory = &c.memories[n];
    x = (*layers_[n])(tape, x, call);
  }
  return (*norm_)(tape, x);
}

void TransformerStack::visit(const std::string& prefix, const Visitor& f) {
  if (position_embedding_) f(prefix + "position_embedding.weight", *position_embedding_);
  if (relative_table_) f(prefix + "relative_table.weight", *relative_table_);
  for (size_t n = 0; n < layers_.size(); ++n) layers_[n]->visit(prefix + "layers." + std::to_string(n) + ".", f);
  norm_->visit(prefix + "norm.", f);
}

void TransformerStack::visit_attention(const std::string& prefix, const AttentionVisitor& f) {
  for (size_t n = 0; n < layers_.size(); ++n)
    layers_[n]->visit_attention(prefix + "layers." + std::to_string(n) + ".", f);
}

}  // namespace qkv::nn
