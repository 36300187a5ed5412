// What whole Transformers are made of: options, and stacks of layers between embeddings and a last norm.
#pragma once
#include <memory>
#include <span>
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

struct TransformerOptions {
  int64_t vocabulary = 0, context = 0;  ///< tokens that there are, and that it sees at most
  int64_t width = 128, layers = 4, heads = 4;
  int64_t key_heads = 0, hidden = 0;  ///< 0: heads; 4 width
  Positions positions = Positions::kLearned;
  /// Who sees whom and how scores become weights, of decoders beside causal; layer n has formula n modulo their number; none:
  /// plain.
  std::vector<Attention> attention{};
  Activation activation = Activation::kGelu;
  bool is_gated = false;
  NormKind norm = NormKind::kLayer;
  bool has_bias = false;     ///< of products and norms
  bool ties_weights = true;  ///< the last product has the embedding's weights (Press, Wolf 2017)
  double dropout = 0;
  DType dtype = DType::kFloat32;
};

/// Normal numbers of deviation 0.02, of what writes into the residual stream 0.02 / sqrt(its additions); biases stay 0, gains 1.
/// Radford et al. 2019.
class QKV_EXPORT Initialiser {
 public:
  explicit Initialiser(uint64_t seed) : seed_(seed) {}
  /// `additions`: how many parts of layers write into the residual stream.
  void operator()(const std::string& name, Parameter&, int64_t additions);

 private:
  uint64_t seed_;
  uint32_t tensor_ = 0;
};

/// What a call of a stack brings beside tokens. Views live until backward().
struct StackCall {
  View<const int32_t> lengths{};         ///< {B}: tokens of each entry, which alone are seen; absent: all
  Variable memory{};                     ///< {B, S, width}, of decoders that look at one
  View<const int32_t> memory_lengths{};  ///< {B}: rows of it that exist; absent: all
  /// Where the weights of a layer's heads go: {B, heads, L, L} and {B, heads, L, S} of layer n; absent views: nowhere.
  std::span<const View<void>> self_weights{}, cross_weights{};

  // ---- step by step, on a tape that does not record ----
  std::span<LayerCache> caches{};  ///< of each layer: tokens stand behind those that are there, and are added
  View<const int32_t> rows{};      ///< {B}: how many tokens of each entry there are, the first ones; absent: all
  std::span<const KeyValueCache> memories{};  ///< of each layer, by remember(): in place of `memory`
};

/// What the caches of a stack hold.
struct CacheOptions {
  int64_t batch = 1;
  int64_t chunk = 64;    ///< most tokens of one call
  int64_t rollback = 0;  ///< how many can be taken back where layers have windows; elsewhere all can
  DType dtype = DType::kFloat32;
};

/// Embeddings with positions, layers, and a norm: an encoder, a decoder, or a decoder that looks at an encoder's memory too.
class QKV_EXPORT TransformerStack {
 public:
  enum class Kind : uint8_t { kEncoder, kDecoder, kCrossDecoder };
  /// Zeros. `cross`: formulas of cross-attention, as TransformerOptions::attention. Throws OptionError.
  TransformerStack(const TransformerOptions&, Kind, std::vector<Attention> cross = {});

  /// ids {B, L}, contiguous, L at most context; tokens {vocabulary, width} -> {B, L, width}. Throws ShapeError,
  /// OptionError for an id that there is not.
  Variable operator()(Tape&, View<const int32_t> ids, const Rows& tokens, const StackCall& = {});
  void visit(const std::string& prefix, const Visitor&);
  void visit_attention(const std::string& prefix, const AttentionVisitor&);
  const TransformerOptions& options() const { return options_; }
  /// A cache for each layer: SlidingCache where its formula has a window that is shorter than the context. Throws OptionError.
  std::vector<LayerCache> make_caches(const CacheOptions&) const;
  /// Projects a memory {B, S, width} once for each layer.
  std::vector<KeyValueCache> remember(Tape&, const Variable& memory);
  /// Whether tokens may pass the context step by step: each layer has a window, and positions are relative or none.
  bool can_slide() const;
  int64_t additions() const;  ///< parts of layers that write into the residual stream

 private:
  Variable embedded(Tape&, View<const int32_t> ids, const Rows& tokens, const StackCall&);
  Variable add_positions(Tape&, const Variable& x, const StackCall&);
  Variable bias_of(Tape&, const Inputs&);
  TransformerLayer::Call call_of(Tape&, int64_t length, const StackCall&);
  TransformerOptions options_;
  Kind kind_;
  std::optional<Parameter> position_embedding_, relative_table_;
  Array sinusoids_, alibi_slopes_;
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  std::unique_ptr<Norm> norm_;
};

}  // namespace qkv::nn
