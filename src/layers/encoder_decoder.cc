// An encoder and a decoder that looks at it.
#include "core/format.h"
#include "layers/predict.h"
#include "qkv/models.h"

namespace qkv::nn {
namespace {

EncoderDecoder::Options completed(EncoderDecoder::Options o) {
  for (const auto& [name, n] :
       {std::pair{"source_vocabulary", o.source_vocabulary}, std::pair{"source_context", o.source_context},
        std::pair{"encoder_layers", o.encoder_layers}})
    if (n < 0) option_error("EncoderDecoder: {} is {}, expected 1 or more, or 0 for the decoder's", name, n);
  if (o.source_context == 0) o.source_context = o.decoder.context;
  if (o.encoder_layers == 0) o.encoder_layers = o.decoder.layers;
  return o;
}

TransformerOptions encoder_of(const EncoderDecoder::Options& o) {
  TransformerOptions encoder = o.decoder;
  if (o.source_vocabulary > 0) encoder.vocabulary = o.source_vocabulary;
  encoder.context = o.source_context;
  encoder.layers = o.encoder_layers;
  encoder.attention = o.encoder_attention;
  return encoder;
}

void check_source(const EncoderDecoder::Source& source) {
  const auto& [ids, lengths] = source;
  if (ids.rank != 2) shape_error("EncoderDecoder: source.ids is {}, expected {{B, S}}", ids);
  if (lengths && (lengths.rank != 1 || lengths.shape[0] != ids.shape[0]))
    shape_error("EncoderDecoder: source.lengths is {}, expected {{{}}}, one number an entry of ids {}", lengths,
                ids.shape[0], ids);
}

}  // namespace

EncoderDecoder::EncoderDecoder(const Options& options)
    : options_(completed(options)),
      encoder_(encoder_of(options_), TransformerStack::Kind::kEncoder),
      decoder_(options_.decoder, TransformerStack::Kind::kCrossDecoder, options_.cross_attention),
      token_embedding_(options.decoder.dtype, {options.decoder.vocabulary, options.decoder.width}),
      source_embedding_(matrix_if(options.source_vocabulary > 0, options.decoder.dtype, options.source_vocabulary,
                                  options.decoder.width)),
      head_(matrix_if(!options.decoder.ties_weights, options.decoder.dtype, options.decoder.vocabulary,
                      options.decoder.width)) {}

void EncoderDecoder::initialise(uint64_t seed) {
  Initialiser fill(seed);
  visit("", [&](const std::string& name, Parameter& p) {
    fill(name, p, name.starts_with("encoder.") ? encoder_.additions() : decoder_.additions());
  });
}

Variable EncoderDecoder::encode(Tape& tape, const Source& source, std::span<const View<void>> weights) {
  check_source(source);
  return encoder_(tape, source.ids, source_embedding_ ? *source_embedding_ : token_embedding_,
                  {.lengths = source.lengths, .self_weights = weights});
}

Variable EncoderDecoder::hidden(Tape& tape, const Source& source, View<const int32_t> target,
                                const AttentionMaps& weights) {
  if (target.rank != 2 || target.shape[0] != source.ids.shape[0])
    shape_error("EncoderDecoder: target is {}, expected {{{}, L}}, an entry for each of the source {}", target,
                source.ids.shape[0], source.ids);
  return decoder_(tape, target, token_embedding_,
                  {.memory = encode(tape, source, weights.encoder),
                   .memory_lengths = source.lengths,
                   .self_weights = weights.decoder,
                   .cross_weights = weights.cross});
}

Variable EncoderDecoder::logits(Tape& tape, const Source& source, View<const int32_t> target,
                                const AttentionMaps& weights) {
  return linear(tape, hidden(tape, source, target, weights), head());
}

Variable EncoderDecoder::loss(Tape& tape, const Source& source, View<const int32_t> target, View<const int32_t> targets,
                              const TargetOptions& options) {
  return prediction_loss(tape, hidden(tape, source, target, {}), head(), targets, options);
}

void EncoderDecoder::visit(const std::string& prefix, const Visitor& f) {
  f(prefix + "token_embedding.weight", token_embedding_);
  if (source_embedding_) f(prefix + "source_embedding.weight", *source_embedding_);
  encoder_.visit(prefix + "encoder.", f);
  decoder_.visit(prefix + "decoder.", f);
  if (head_) f(prefix + "head.weight", *head_);
}

void EncoderDecoder::visit_attention(const std::string& prefix, const AttentionVisitor& f) {
  encoder_.visit_attention(prefix + "encoder.", f);
  decoder_.visit_attention(prefix + "decoder.", f);
}

}  // namespace qkv::nn
