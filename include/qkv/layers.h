// Layers of Transformers: parameters, and what is computed with them. Parameters have PyTorch's names, so that state goes over in
// both directions.
//
//   qkv::nn::MultiHeadAttention attention({.width = 64, .heads = 4, .formula = qkv::Attention::parse("causal")});
//   qkv::nn::Tape tape;
//   qkv::nn::Variable y = attention(tape, tape.constant(x));        // x {B, L, 64}
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "qkv/cache.h"
#include "qkv/operations.h"

namespace qkv::nn {

/// Sees every parameter with its name, "layers.0.self_attn.out_proj.weight".
using Visitor = std::function<void(const std::string& name, Parameter&)>;

class MultiHeadAttention;
/// Sees every attention with its name, "layers.0.self_attn".
using AttentionVisitor = std::function<void(const std::string& name, MultiHeadAttention&)>;

/// y = x W^T + b.   weight {out, in}, bias {out}
class QKV_EXPORT Linear {
 public:
  struct Options {
    int64_t in = 0, out = 0;
    bool has_bias = true;
    DType dtype = DType::kFloat32;
  };
  /// Zeros. Throws OptionError.
  explicit Linear(const Options&);
  Variable operator()(Tape&, const Variable& x);  ///< {..., in} -> {..., out}
  void visit(const std::string& prefix, const Visitor&);
  Parameter weight;
  std::optional<Parameter> bias;
};

/// Which norm a layer has.
enum class NormKind : uint8_t { kLayer, kRms };

/// Layer norm with gain and bias, or RMS norm with gain.   weight, bias {dim}
class QKV_EXPORT Norm {
 public:
  struct Options {
    int64_t dim = 0;
    NormKind kind = NormKind::kLayer;
    double epsilon = 1e-5;
    bool has_bias = true;  ///< of layer norm
    DType dtype = DType::kFloat32;
  };
  /// A gain of ones. Throws OptionError.
  explicit Norm(const Options&);
  Variable operator()(Tape&, const Variable& x);
  void visit(const std::string& prefix, const Visitor&);
  Parameter weight;
  std::optional<Parameter> bias;

 private:
  NormKind kind_;
  double epsilon_;
};

/// Keys and values of the tokens that a layer has seen: of all, or of those that a sliding window sees.
using LayerCache = std::variant<KeyValueCache, SlidingCache>;

/// What a call of an attention layer brings beside x.
struct AttentionCall {
  Inputs masks{};   ///< of the attention's formula: masks, lengths, documents, offsets; they live until backward()
  Variable bias{};  ///< {B or 1, Hq or 1, L, S}, where the formula has `bias`
  RowPositions positions{};  ///< of the rows of x, for rotary positions
  View<void> weights{};      ///< if wanted, the weights of each head {B, Hq, L, S}, before dropout; without a gradient

  // ---- step by step, on a tape that does not record: the bits of all tokens at once ----
  /// Of self-attention: x stands behind what is in it, is appended, and sees all of it; `positions` are ignored.
  LayerCache* cache = nullptr;
  View<const int32_t> cache_rows{};  ///< {B}: how many rows of x each entry appends, the first ones; absent: all
  std::function<Variable(const Inputs&)> bias_of{};  ///< `bias` by the inputs after that; absent: none
  /// Of attention over something else: keys and values that remember() has projected, in place of key and value.
  const KeyValueCache* memory = nullptr;
};

/// Concatenated heads of attention over projected queries, keys and values, projected once more.
///   head h = attention(x W_q[h]^T, source W_k[h]^T, source W_v[h]^T),   y = [heads] W_o^T.   Vaswani et al. 2017, 3.2.2
/// Where queries, keys and values come from tensors of one width, their projections are the rows of one in_proj_weight: first all
/// heads of queries, then of keys, then of values, as in torch.nn.MultiheadAttention; else they are q_proj_weight, k_proj_weight,
/// v_proj_weight. in_proj_bias is that of all three.
class QKV_EXPORT MultiHeadAttention {
 public:
  struct Options {
    int64_t width = 0;                         ///< of x and y
    int64_t heads = 1;                         ///< of queries
    int64_t key_heads = 0;                     ///< of keys and values; 0: as many as of queries
    int64_t key_width = 0, value_width = 0;    ///< of what keys and values are projected from; 0: width
    int64_t head_dim = 0, value_head_dim = 0;  ///< 0: width / heads; as head_dim
    bool has_query_bias = true, has_key_bias = true, has_value_bias = true, has_out_bias = true;
    bool normalises_heads = false;   ///< RMS norm of each head's queries and keys (QK-norm, Henry et al. 2020)
    std::optional<Rotary> rotary{};  ///< turns queries and keys
    Attention formula{};             ///< masks, score modifiers, softmax, dropout
    DType dtype = DType::kFloat32;
  };
  /// Zeros. Throws OptionError: heads that do not divide the width, key heads that do not divide the heads.
  explicit MultiHeadAttention(const Options&);

  /// Self-attention.   x {B, L, width} -> {B, L, width}. Throws ShapeError and what forward() throws.
  Variable operator()(Tape&, const Variable& x, const AttentionCall& = {});
  /// Keys and values from elsewhere.   key {B, S, key_width}, value {B, S, value_width}
  Variable operator()(Tape&, const Variable& x, const Variable& key, const Variable& value, const AttentionCall& = {});
  /// Appends projected keys and values to a cache, for AttentionCall::memory.   key {B, S, key_width}, value {B, S, value_width}
  void remember(Tape&, const Variable& key, const Variable& value, KeyValueCache&);
  void visit(const std::string& prefix, const Visitor&);

  const Options& options() const { return options_; }
  std::optional<Parameter> in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight;
  std::optional<Parameter> in_proj_bias;
  Linear out_proj;
  std::optional<Norm> query_norm, key_norm;
  AttentionWatcher* watcher = nullptr;  ///< who looks at the passes that a tape records

 private:
  enum class Part : uint8_t { kQuery, kKey, kValue };
  struct Projection {
    Rows weight, bias;
  };
  Projection projection(Part);
  Variable project(Tape&, Part, const Variable& x);
  Variable normalise(Tape&, Norm&, const Variable& x);
  struct Heads {
    Variable query{}, key{}, value{};
  };
  Heads keys_of(Tape&, const Variable& key, const Variable& value);
  Variable attend_to(Tape&, Heads, const AttentionCall&);
  Variable attend_cached(Tape&, Heads, const AttentionCall&);
  Variable attend_memory(Tape&, const Variable& x, const AttentionCall&);
  Options options_;
};

/// A layer of an encoder, of a decoder that looks at an encoder, or of a decoder that does not:
///   kBefore   x + attention(norm(x)), x + cross(norm(x), memory), x + feed_forward(norm(x))     Xiong et al. 2020
///   kAfter    norm(x + attention(x)), ...                                                        Vaswani et al. 2017
/// Parameters are named as in torch.nn.TransformerEncoderLayer (self_attn, linear1, linear2, norm1, norm2) and, with
/// cross-attention, TransformerDecoderLayer (multihead_attn, norm3).
class QKV_EXPORT TransformerLayer {
 public:
  enum class NormPlace : uint8_t { kBefore, kAfter };
  struct Options {
    MultiHeadAttention::Options self{};                  ///< its width is the layer's
    std::optional<MultiHeadAttention::Options> cross{};  ///< absent: no cross-attention
    int64_t hidden = 0;                                  ///< of the feed-forward; 0: 4 width
    Activation activation = Activation::kGelu;
    bool is_gated = false, has_bias = true;  ///< of the feed-forward
    NormKind norm = NormKind::kLayer;
    NormPlace norm_place = NormPlace::kBefore;
    bool norm_has_bias = true;
    double norm_epsilon = 1e-5;
    double dropout = 0;  ///< of what each part adds, and inside the feed-forward
  };
  /// Throws OptionError.
  explicit TransformerLayer(const Options&);

  struct Call {
    AttentionCall self{}, cross{};
    Variable memory{};  ///< {B, S, width of keys}: what cross-attention looks at, unless it is cross.memory
  };
  Variable operator()(Tape&, Variable x, const Call&);  ///< {B, L, width} -> the same
  void visit(const std::string& prefix, const Visitor&);
  void visit_attention(const std::string& prefix, const AttentionVisitor&);

  MultiHeadAttention self_attn;
  std::unique_ptr<MultiHeadAttention> multihead_attn;
  Linear linear1, linear2;
  Norm norm1, norm2;
  std::optional<Norm> norm3;

 private:
  Variable feed_forward(Tape&, const Variable& x);
  template <class Part> Variable residual(Tape&, Norm&, const Variable& x, const Part& part);
  Options options_;
};

/// Calls f for every parameter of a layer.
template <class Layer> void for_parameters(Layer& layer, const Visitor& f) { layer.visit("", f); }

}  // namespace qkv::nn
