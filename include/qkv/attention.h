// Attention. Start here.
//
//   out = softmax(modify(scale * query key^T), over the visible keys) value
//
// An Attention says how (a value: numbers and names), Inputs and Outputs say on what (views), forward() does it.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/adapt.h"
#include "qkv/executor.h"
#include "qkv/policies.h"
#include "qkv/view.h"

namespace qkv {

/// Where query 0 stands among the keys. kTopLeft: at position 0. kBottomRight: so that the last query stands at the last
/// valid key, which can be a negative position. kUnset is allowed only where both agree.
enum class Align : uint8_t { kUnset, kTopLeft, kBottomRight };

/// Which key head a query head reads where there are fewer: h / (Hq / Hkv), or h mod Hkv (ONNX 1.18, x-transformers).
enum class HeadMapping : uint8_t { kGrouped, kTiled };

class Vocabulary;

/// The formula of an attention: a value that holds numbers and names, never a tensor. Copy it, compare it, keep it in a
/// config, share it between threads and layers. What changes from call to call is in Inputs.
class QKV_EXPORT Attention {
 public:
  // Of the library, so that a user's file compiled with other flags has none of its own.
  Attention();
  ~Attention();
  Attention(const Attention&);
  Attention(Attention&&) noexcept;
  Attention& operator=(const Attention&);
  Attention& operator=(Attention&&) noexcept;

  /// A key is visible where every pattern sees it. Built-in ones: Causal, Window, Documents, KeepMask, IgnoreMask.
  template <class P> Attention& visible(P pattern) & { return add(adapt_pattern(std::move(pattern))); }
  template <class P> Attention visible(P pattern) && { return std::move(visible(std::move(pattern))); }
  /// Modifiers run in the order in which they are added. Built-in ones: SoftCap, SoftCaps, Scales, Alibi, Bias.
  template <class M> Attention& score(M modifier) & { return add(adapt_score(std::move(modifier))); }
  template <class M> Attention score(M modifier) && { return std::move(score(std::move(modifier))); }

  Attention& weights(Softmax) { return sink_ = false, *this; }
  Attention& weights(SinkSoftmax) { return sink_ = true, *this; }
  /// One more key of zeros with a value of zeros that no mask and no modifier touches: a sink of logit 0.
  Attention& zero_key(bool on = true) { return zero_key_ = on, *this; }
  Attention& align(Align align) { return align_ = align, *this; }
  Attention& heads(HeadMapping mapping) { return heads_ = mapping, *this; }
  Attention& scale(double scale);  ///< absent: 1 / sqrt(D), 1 where D is 0; any finite number. Throws OptionError.
  Attention& dropout(double p);    ///< in [0, 1]; acts in training only. Throws OptionError.

  /// Reads "causal window:255,0 align:bottom_right | softcap:30 bias | softmax". Strict: a word that is unknown, twice where
  /// once is meant, in the wrong stage or with wrong arguments throws OptionError, which names it and its place. See
  /// docs/semantics.md.
  static Attention parse(std::string_view text);
  static Attention parse(std::string_view text, const Vocabulary& own_words);
  /// The inverse: parse(a.text()) == a, provided that every policy has a name (own words need their Vocabulary).
  std::string text() const;
  /// Equal formulas. Policies without a name are equal only to themselves.
  friend QKV_EXPORT bool operator==(const Attention&, const Attention&);

  std::span<const std::shared_ptr<const passes::Pattern>> patterns() const { return patterns_; }
  std::span<const std::shared_ptr<const passes::Score>> scores() const { return scores_; }
  std::optional<double> scale() const { return scale_; }
  double dropout() const { return dropout_; }
  Align align() const { return align_; }
  HeadMapping heads() const { return heads_; }
  bool has_sinks() const { return sink_; }
  bool has_zero_key() const { return zero_key_; }

  Attention& add(std::shared_ptr<const passes::Pattern>);
  Attention& add(std::shared_ptr<const passes::Score>);

 private:
  std::vector<std::shared_ptr<const passes::Pattern>> patterns_;
  std::vector<std::shared_ptr<const passes::Score>> scores_;
  std::optional<double> scale_;
  double dropout_ = 0;
  Align align_ = Align::kUnset;
  HeadMapping heads_ = HeadMapping::kGrouped;
  bool sink_ = false, zero_key_ = false;
};

// ---- one call: views in, views out, nothing kept after it returns ----

/// A tensor of a policy of one's own.
struct Named {
  std::string_view name;
  View<const void> view;
};

/// What comes in. query, key and value share one type: float32, float64, float16 or bfloat16. Absent: an empty view.
struct Inputs {
  View<const void> query{};  ///< {B, Hq, L, D}; packed {total queries, Hq, D}
  View<const void> key{};    ///< {B, Hkv, S, D}; packed {total keys, Hkv, D}; Hq is a multiple of Hkv
  View<const void> value{};  ///< {B, Hkv, S, Dv}; packed {total keys, Hkv, Dv}

  View<const void> keep_mask{};  ///< bool {B, Hq, L, S}, each axis 1 or full; of packed batches L and S are the longest
  View<const void> ignore_mask{};      ///< the same with the opposite meaning
  View<const void> bias{};             ///< the query's type, float32 or float64 {B, Hq, L, S}, each axis 1 or full
  View<const void> alibi_slopes{};     ///< {Hq} float32 or float64
  View<const void> sinks{};            ///< {Hq} float32 or float64
  View<const void> query_documents{};  ///< int32 {B or 1, L}
  View<const void> key_documents{};    ///< int32 {B or 1, S}
  std::vector<Named> parameters{};     ///< softcaps, scales, tensors of policies of one's own

  View<const int32_t> key_lengths{};   ///< {B}: columns that exist, 0 to S
  View<const int32_t> query_offset{};  ///< {B or 1}: position of query 0; overrides Align
  View<const int32_t>
      key_start{};  ///< {B or 1}: position of column 0 where a cache dropped its oldest keys; at least 0
  /// Training: where the attention has dropout(p) and one of these is given, and nowhere else, dropout acts. A weight is kept where
  /// dropout_keeps(seed, ...) says so, see qkv/dropout.h, or where the tensor is true: bool {B, Hq, L, S}, each axis 1 or full.
  std::optional<uint64_t> dropout_seed{};
  View<const void> dropout_keep{};
  /// Packed ragged batches: {B + 1} each, from 0 to the total, not decreasing; sequence b is rows [c[b], c[b + 1]).
  View<const int32_t> cumulative_query_lengths{}, cumulative_key_lengths{};
};

/// Facts about each row, made in the forward sweep at O(L) memory. {B, Hq, L} each, packed {total queries, Hq}. They
/// describe the weights over the visible keys; a sink is left out and the rest renormalised, but for max_weight, top_weights
/// and sink_share. Of a row that sees nothing: 0 (sink_share: 1 where there is a sink or zero key), index -1.
struct RowStatistics {
  View<float> entropy{};         ///< -sum w ln w, in nats
  View<float> effective_keys{};  ///< exp(entropy): between 1 and the number of visible keys
  View<float> max_weight{};      ///< the largest weight, of the whole with the sink
  View<int32_t> max_index{};     ///< its column; ties to the lowest
  View<float> mean_distance{};   ///< sum w |p - j|, in positions
  View<float> sink_share{};      ///< what sink and zero key take of the whole, 0 to 1
  View<int32_t> visible_keys{};  ///< how many keys the row sees; 0: an empty row
  View<float> top_weights{};     ///< {B, Hq, L, n}: the n largest weights, falling; 0 where there are fewer keys
  View<int32_t> top_indices{};   ///< {B, Hq, L, n}: their columns; -1 where there are fewer keys
};

/// What goes out; an empty view is not computed. Asking for more never changes a bit of the rest.
struct Outputs {
  View<void> out{};  ///< {B, Hq, L, Dv}, packed {total queries, Hq, Dv}; the query's type; written completely
  View<void>
      lse{};  ///< {B, Hq, L}, packed {total queries, Hq}; natural log, includes the sink; float32, of float64 input float64
  View<void> row_max{};  ///< the kernel's own maximum and sum of each row, like lse, for observe() and backward():
  View<void> row_sum{};  ///< w = exp(s - row_max) / row_sum with exactly the forward's roundings
  RowStatistics rows{};

  // Whole matrices, for small inputs and interchange: {B, Hq, L, S}, or {B, Hq, n, S} for chosen rows. Like lse in type.
  // Of packed batches L and S are the longest. Rows and columns that do not exist: weight 0, score -inf.
  View<void> weights{};               ///< before dropout, without the sink
  View<void> raw_scores{};            ///< scale * q k
  View<void> modified_scores{};       ///< after the modifiers, before the masks
  View<void> masked_scores{};         ///< after the masks: -inf where hidden
  View<const int32_t> matrix_rows{};  ///< {n}: the rows that these four have; absent: all
};

/// Computes what `outputs` asks for. All sizes, types and options are checked before anything is written; where nothing is
/// asked for, that is all.
/// Throws ShapeError, DtypeError, OptionError, Cancelled. O(B Hq L S (D + Dv)) time over the visible tiles;
/// scratch does not grow with L * S.
QKV_EXPORT void forward(const Attention&, const Inputs&, const Outputs& outputs, const Call& = {});

/// What forward() left for whoever wants to look at the weights: as in Outputs.
struct RowSums {
  View<const void> row_max{}, row_sum{};
};
/// One more sweep, over finished weights; `out` is not touched. Observers: a struct of one's own (see ObserverRef), or
/// those of qkv/observers.h. Same bits for any number of threads.
QKV_EXPORT void observe(const Attention&, const Inputs&, const RowSums&, std::span<const ObserverRef> observers,
                        const Call& = {});
inline void observe(const Attention& a, const Inputs& in, const RowSums& sums, std::initializer_list<ObserverRef> who,
                    const Call& call = {}) {
  observe(a, in, sums, std::span(who.begin(), who.size()), call);
}

/// Which path will run for these inputs, with which tiles and how much scratch, and why. Kernel, tile and reason are those of
/// the first batch entry: packed sequences of very different lengths may take different ones.
struct Path {
  std::string kernel;           ///< "prefill" (lanes are queries) or "decode" (lanes are keys)
  std::string instruction_set;  ///< "AVX-512", "AVX2", "SSE4", ...
  int query_tile = 0;           ///< most rows of a tile
  int key_block = 0;            ///< keys of a block, at absolute positions
  int64_t work_items = 0;       ///< what threads share
  int64_t scratch_bytes = 0;    ///< at most, for the executor of the call; statistics and matrices come on top
  int64_t visited_tiles = 0, full_tiles = 0, skipped_tiles = 0;  ///< tiles of queries times blocks of keys
  int64_t visible_pairs = 0;                                     ///< of a query and a key, over all heads
  std::string reason;                                            ///< one sentence
};
QKV_EXPORT Path find_path(const Attention&, const Inputs&, const Call& = {});            ///< checks like forward()
QKV_EXPORT std::string explain_path(const Attention&, const Inputs&, const Call& = {});  ///< the same as text

/// Words that parse() understands beside the built-in ones. There is no global registry.
class Vocabulary {
 public:
  enum class Stage : uint8_t { kVisible, kScore };
  struct Word {
    std::string_view name;
    Stage stage;
    void (*add)(Attention&, std::string_view arguments);
  };
  template <class P> Vocabulary& pattern() {
    return add({P::kName, Stage::kVisible, [](Attention& a, std::string_view args) { a.visible(from_text<P>(args)); }});
  }
  template <class M> Vocabulary& modifier() {
    return add({M::kName, Stage::kScore, [](Attention& a, std::string_view args) { a.score(from_text<M>(args)); }});
  }
  std::span<const Word> words() const { return words_; }

 private:
  QKV_EXPORT Vocabulary& add(Word);
  template <class P> static P from_text(std::string_view args);
  std::vector<Word> words_;
};

namespace detail {
/// Takes the next of the comma-separated arguments as a number. Throws OptionError.
QKV_EXPORT void take_argument(std::string_view& rest, int& value);
QKV_EXPORT void take_argument(std::string_view& rest, float& value);
QKV_EXPORT void take_argument(std::string_view& rest, double& value);
QKV_EXPORT void expect_no_argument(std::string_view rest);
}  // namespace detail

template <class P> P Vocabulary::from_text(std::string_view args) {
  P policy{};
  if constexpr (detail::kHasFields<P>)
    std::apply([&](auto&... f) { (detail::take_argument(args, f), ...); }, policy.fields());
  detail::expect_no_argument(args);
  return policy;
}

}  // namespace qkv
