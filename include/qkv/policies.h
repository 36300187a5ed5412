// The built-in policies: plain structs that hold numbers and names of tensors, one formula each. The formula is the
// specification: the oracle runs it, the kernels are compared with it, the text form comes from its fields.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <tuple>

#include "qkv/adapt.h"

namespace qkv {

namespace detail {
constexpr int32_t clamp_column(int64_t column) {
  return int32_t(std::clamp<int64_t>(column, 0, std::numeric_limits<int32_t>::max()));
}
}  // namespace detail

// ---- who sees whom ----

/// Query p sees keys j <= p (positions; see Align).
struct Causal {
  static constexpr std::string_view kName = "causal";
  static constexpr bool kReadsHead = false;
  KeyRange keys(Row r) const { return {r.present.first, detail::clamp_column(int64_t{r.query} - r.key_start + 1)}; }
};

/// Query p sees p - left <= j <= p + right; -1 is unlimited. The "window W" of model files (W keys with itself) is
/// left = W - 1; flash-attention's (left, right) mean the same as ours, attention-gym's window W is left = W. Below -1
/// visible() throws OptionError.
struct Window {
  static constexpr std::string_view kName = "window";
  static constexpr bool kReadsHead = false;
  int left = -1, right = -1;
  const char* fault() const {
    return left < -1 || right < -1 ? "expected distances of 0 and more, or -1 for no limit" : nullptr;
  }
  KeyRange keys(Row r) const {
    const int64_t here = int64_t{r.query} - r.key_start;
    return {left < 0 ? r.present.first : detail::clamp_column(here - left),
            right < 0 ? r.present.last : detail::clamp_column(here + right + 1)};
  }
  auto fields() { return std::tie(left, right); }
};

/// Query and key of the same document, in packed sequences. Tensors query_documents {B, L} and key_documents {B, S},
/// int32, B may be 1. Restarting position numbers hides nothing: this does.
struct Documents {
  static constexpr std::string_view kName = "documents";
  static constexpr bool kReadsHead = false, kReadsPositions = false;
  Parameter query_documents{"query_documents"}, key_documents{"key_documents"};
  bool sees(Site at) const {
    return query_documents.get<int32_t>(at.batch, at.row) == key_documents.get<int32_t>(at.batch, at.column);
  }
  auto parameters() { return std::tie(query_documents, key_documents); }
};

/// True may attend (PyTorch's scaled_dot_product_attention; nn.MultiheadAttention means the opposite, see IgnoreMask).
/// Tensor keep_mask {B, Hq, L, S} of bool, each axis 1 or full.
struct KeepMask {
  static constexpr std::string_view kName = "keep_mask";
  static constexpr bool kReadsPositions = false;
  Parameter mask{"keep_mask"};
  bool sees(Site at) const { return mask.get<bool>(at.batch, at.head, at.row, at.column); }
  auto parameters() { return std::tie(mask); }
};

/// True is hidden (nn.MultiheadAttention, key_padding_mask). Tensor ignore_mask {B, Hq, L, S} of bool, each axis 1 or full.
struct IgnoreMask {
  static constexpr std::string_view kName = "ignore_mask";
  static constexpr bool kReadsPositions = false;
  Parameter mask{"ignore_mask"};
  bool sees(Site at) const { return !mask.get<bool>(at.batch, at.head, at.row, at.column); }
  auto parameters() { return std::tie(mask); }
};

// ---- what happens to a score ----

/// score' = cap * tanh(score / cap); cap > 0, or score() throws OptionError. Gemma 2 (2024) and Bello et al. 2017, section 5.
struct SoftCap {
  static constexpr std::string_view kName = "softcap";
  static constexpr bool kReadsHead = false, kReadsPositions = false;
  double cap = 0;
  const char* fault() const {
    return float(cap) > 0 && std::isfinite(float(cap))
               ? nullptr
               : "expected a number above 0, within float32; leave it out for no cap";
  }
  auto operator()(auto score, Site) const {
    using std::tanh;
    return tanh(score / cap) * cap;
  }
  auto fields() { return std::tie(cap); }
};

/// The same with a cap for each head that is a tensor, so that it has a gradient. Tensor softcaps {Hq} among Inputs::parameters,
/// above 0.
struct SoftCaps {
  static constexpr std::string_view kName = "softcaps";
  static constexpr bool kReadsPositions = false;
  Parameter caps{"softcaps"};
  auto operator()(auto score, Site at, auto& read) const {
    using std::tanh;
    const auto cap = read(caps, at.head);
    return tanh(score / cap) * cap;
  }
  auto parameters() { return std::tie(caps); }
};

/// score' = score * scale[head]: a scale that is a tensor, so that it has a gradient. It comes on top of the attention's scale:
/// with scale(1) there is no other. Tensor scales {Hq} among Inputs::parameters. Henry et al. 2020 (query-key normalisation).
struct Scales {
  static constexpr std::string_view kName = "scales";
  static constexpr bool kReadsPositions = false;
  Parameter scales{"scales"};
  auto operator()(auto score, Site at, auto& read) const { return score * read(scales, at.head); }
  auto parameters() { return std::tie(scales); }
};

/// score' = score - slope[head] * |p - j|. Tensor alibi_slopes {Hq}, see alibi_slopes(). Press, Smith, Lewis 2022.
struct Alibi {
  static constexpr std::string_view kName = "alibi";
  Parameter slopes{"alibi_slopes"};
  auto operator()(auto score, Site at, auto& read) const {
    return score - read(slopes, at.head) * float(std::abs(at.query - at.key));
  }
  auto parameters() { return std::tie(slopes); }
};

/// score' = score + bias. Tensor bias {B, Hq, L, S}, each axis 1 or full, of the query's type, float32 or float64.
/// Only -inf hides; the lowest finite number is an ordinary bias.
struct Bias {
  static constexpr std::string_view kName = "bias";
  static constexpr bool kReadsPositions = false;
  Parameter bias{"bias"};
  auto operator()(auto score, Site at, auto& read) const {
    return score + read(bias, at.batch, at.head, at.row, at.column);
  }
  auto parameters() { return std::tie(bias); }
};

// ---- how scores become weights: a closed set ----

/// w = exp(score - lse).
struct Softmax {};
/// The same with one more term exp(sink[head] - lse) in the sum that belongs to no key. Tensor sinks {Hq}.
struct SinkSoftmax {};

// Built-in policies become passes inside the library, with vectors: whatever flags the caller compiles with, the same
// bits. (These overloads win against the templates; the formulas above are what the tests compare them with.)
QKV_EXPORT std::shared_ptr<const passes::Pattern> adapt_pattern(Causal);
QKV_EXPORT std::shared_ptr<const passes::Pattern> adapt_pattern(Window);
QKV_EXPORT std::shared_ptr<const passes::Pattern> adapt_pattern(Documents);
QKV_EXPORT std::shared_ptr<const passes::Pattern> adapt_pattern(KeepMask);
QKV_EXPORT std::shared_ptr<const passes::Pattern> adapt_pattern(IgnoreMask);
QKV_EXPORT std::shared_ptr<const passes::Score> adapt_score(SoftCap);
QKV_EXPORT std::shared_ptr<const passes::Score> adapt_score(SoftCaps);
QKV_EXPORT std::shared_ptr<const passes::Score> adapt_score(Scales);
QKV_EXPORT std::shared_ptr<const passes::Score> adapt_score(Alibi);
QKV_EXPORT std::shared_ptr<const passes::Score> adapt_score(Bias);

}  // namespace qkv
