// One layer of a Transformer.
#include "core/format.h"
#include "qkv/layers.h"

namespace qkv::nn {
namespace {

TransformerLayer::Options completed(TransformerLayer::Options o) {
  if (o.hidden == 0) o.hidden = 4 * o.self.width;
  if (!(o.dropout >= 0 && o.dropout <= 1)) option_error("TransformerLayer: dropout is {}, expected 0 to 1", o.dropout);
  if (o.cross && o.cross->width != o.self.width)
    option_error("TransformerLayer: cross-attention has width {} and self-attention {}, expected one width",
                 o.cross->width, o.self.width);
  return o;
}

Norm::Options norm_of(const TransformerLayer::Options& o) {
  return {.dim = o.self.width,
          .kind = o.norm,
          .epsilon = o.norm_epsilon,
          .has_bias = o.norm_has_bias,
          .dtype = o.self.dtype};
}

}  // namespace

TransformerLayer::TransformerLayer(const Options& options)
    : self_attn(options.self),
      multihead_attn(options.cross ? std::make_unique<MultiHeadAttention>(*options.cross) : nullptr),
      linear1({.in = options.self.width,
               .out = (options.is_gated ? 2 : 1) * completed(options).hidden,
               .has_bias = options.has_bias,
               .dtype = options.self.dtype}),
      linear2({.in = completed(options).hidden,
               .out = options.self.width,
               .has_bias = options.has_bias,
               .dtype = options.self.dtype}),
      norm1(norm_of(options)),
      norm2(norm_of(options)),
      options_(completed(options)) {
  if (options.cross) norm3.emplace(norm_of(options));
}

Variable TransformerLayer::feed_forward(Tape& tape, const Variable& x) {
  const Variable h = linear1(tape, x);  // {B, L, hidden or 2 hidden}
  const Variable a =
      options_.is_gated ? activate_gated(tape, options_.activation, h) : activate(tape, options_.activation, h);
  return linear2(tape, dropout(tape, a, options_.dropout));
}

template <class Part> Variable TransformerLayer::residual(Tape& tape, Norm& norm, const Variable& x, const Part& part) {
  if (options_.norm_place == NormPlace::kBefore)
    return add(tape, x, dropout(tape, part(norm(tape, x)), options_.dropout));
  return norm(tape, add(tape, x, dropout(tape, part(x), options_.dropout)));
}

Variable TransformerLayer::operator()(Tape& tape, Variable x, const Call& call) {
  if ((call.memory || call.cross.memory) != bool(multihead_attn))
    option_error("TransformerLayer: memory is {} and cross-attention {}, expected both or neither",
                 call.memory || call.cross.memory ? "given" : "absent", multihead_attn ? "there" : "absent");
  x = residual(tape, norm1, x, [&](const Variable& y) { return self_attn(tape, y, call.self); });
  if (multihead_attn) {
    x = residual(tape, norm2, x,
                 [&](const Variable& y) { return (*multihead_attn)(tape, y, call.memory, call.memory, call.cross); });
  }
  return residual(tape, norm3 ? *norm3 : norm2, x, [&](const Variable& y) { return feed_forward(tape, y); });
}

void TransformerLayer::visit(const std::string& prefix, const Visitor& f) {
  self_attn.visit(prefix + "self_attn.", f);
  if (multihead_attn) multihead_attn->visit(prefix + "multihead_attn.", f);
  linear1.visit(prefix + "linear1.", f), linear2.visit(prefix + "linear2.", f);
  norm1.visit(prefix + "norm1.", f), norm2.visit(prefix + "norm2.", f);
  if (norm3) norm3->visit(prefix + "norm3.", f);
}

void TransformerLayer::visit_attention(const std::string& prefix, const AttentionVisitor& f) {
  f(prefix + "self_attn", self_attn);
  if (multihead_attn) f(prefix + "multihead_attn", *multihead_attn);
}

}  // namespace qkv::nn
