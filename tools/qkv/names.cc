#include "qkv/names.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace qkv::cli {

namespace {

/// The names of the format.
constexpr std::string_view kInputs[] = {
    "q", "k", "v", "out", "weights", "lse", "dout", "dlse", "dq", "dk", "dv", "bias", "keep_mask", "ignore_mask",
    "key_lengths", "document_ids", "sinks", "alibi_slopes", "q_offset", "scale", "x", "wq", "wk", "wv", "wo",
    // What the library has beyond them.
    "query_documents", "heads", "key_documents", "key_start", "cumulative_query_lengths", "cumulative_key_lengths"};
constexpr std::string_view kResults[] = {"entropy",      "max_weight", "max_index",      "top_weights",
                                         "top_indices",  "received",   "effective_keys", "mean_distance",
                                         "visible_keys", "sink_share", "projected"};

/// A pattern is compared with the parts of a name between dots (or slashes), in lower case, after those that say the layer;
/// "*." is any parts or none before. What may mean several things is not here: a mask that does not say what true means,
/// "scale" and "bias" behind other parts (norms and linear layers have those too).
struct Pattern {
  std::string_view tensor, pattern;
};
constexpr Pattern kPatterns[] = {
    {"q", "*.q"},
    {"q", "*.query"},
    {"q", "*.queries"},
    {"q", "*.query_states"},
    {"q", "*.query_layer"},
    {"k", "*.k"},
    {"k", "*.key"},
    {"k", "*.keys"},
    {"k", "*.key_states"},
    {"k", "*.key_layer"},
    {"k", "*.k_cache"},
    {"k", "*.key_cache"},
    {"v", "*.v"},
    {"v", "*.value"},
    {"v", "*.values"},
    {"v", "*.value_states"},
    {"v", "*.value_layer"},
    {"v", "*.v_cache"},
    {"v", "*.value_cache"},
    {"out", "o"},
    {"out", "output"},
    {"out", "*.out"},
    {"out", "*.attn_out"},
    {"out", "*.attn_output"},
    {"out", "*.attention_output"},
    {"out", "*.context"},
    {"out", "*.context_layer"},
    {"weights", "p"},
    {"weights", "*.probs"},
    {"weights", "*.attn_weights"},
    {"weights", "*.attention_weights"},
    {"weights", "*.attn_probs"},
    {"weights", "*.attention_probs"},
    {"weights", "*.attentions"},
    {"lse", "*.lse"},
    {"lse", "*.logsumexp"},
    {"lse", "*.log_sum_exp"},
    {"lse", "*.softmax_lse"},
    {"dout", "do"},
    {"dout", "*.dout"},
    {"dout", "*.grad_out"},
    {"dout", "*.grad_output"},
    {"dout", "*.out.grad"},
    {"dlse", "*.dlse"},
    {"dq", "*.dq"},
    {"dq", "*.grad_q"},
    {"dq", "*.grad_query"},
    {"dq", "*.q.grad"},
    {"dq", "*.query.grad"},
    {"dk", "*.dk"},
    {"dk", "*.grad_k"},
    {"dk", "*.grad_key"},
    {"dk", "*.k.grad"},
    {"dk", "*.key.grad"},
    {"dv", "*.dv"},
    {"dv", "*.grad_v"},
    {"dv", "*.grad_value"},
    {"dv", "*.v.grad"},
    {"dv", "*.value.grad"},
    {"bias", "*.attn_bias"},
    {"bias", "*.attention_bias"},
    {"bias", "*.position_bias"},
    {"keep_mask", "*.keep_mask"},
    {"ignore_mask", "*.ignore_mask"},
    {"key_lengths", "*.key_lens"},
    {"key_lengths", "*.kv_lens"},
    {"key_lengths", "*.kv_lengths"},
    {"key_lengths", "*.cache_seqlens"},
    {"document_ids", "documents"},
    {"document_ids", "doc_ids"},
    {"sinks", "*.sinks"},
    {"sinks", "*.attn_sink"},
    {"sinks", "*.attention_sinks"},
    {"alibi_slopes", "*.alibi_slopes"},
    {"alibi_slopes", "slopes"},
    {"q_offset", "query_offset"},
    {"cumulative_query_lengths", "cu_seqlens_q"},
    {"cumulative_key_lengths", "cu_seqlens_k"},
    {"scale", "scaling"},
    {"scale", "*.softmax_scale"},
    {"scale", "*.sm_scale"},
    {"scale", "*.attn.scaling"},
    {"scale", "*.self_attn.scaling"},
    {"x", "*.hidden_states"},
    {"wq", "*.wq"},
    {"wq", "*.wq.weight"},
    {"wq", "*.q_proj.weight"},
    {"wq", "*.query.weight"},
    {"wq", "*.q_lin.weight"},
    {"wq", "*.to_q.weight"},
    {"wq", "*.attn_q.weight"},
    {"wq", "*.q.weight"},
    {"wq", "*.q_proj_weight"},
    {"wk", "*.wk"},
    {"wk", "*.wk.weight"},
    {"wk", "*.k_proj.weight"},
    {"wk", "*.key.weight"},
    {"wk", "*.k_lin.weight"},
    {"wk", "*.to_k.weight"},
    {"wk", "*.attn_k.weight"},
    {"wk", "*.k.weight"},
    {"wk", "*.k_proj_weight"},
    {"wv", "*.wv"},
    {"wv", "*.wv.weight"},
    {"wv", "*.v_proj.weight"},
    {"wv", "*.value.weight"},
    {"wv", "*.v_lin.weight"},
    {"wv", "*.to_v.weight"},
    {"wv", "*.attn_v.weight"},
    {"wv", "*.v.weight"},
    {"wv", "*.v_proj_weight"},
    {"wo", "*.attention.wo.weight"},
    {"wo", "*.o_proj.weight"},
    {"wo", "*.out_proj.weight"},
    {"wo", "*.out_lin.weight"},
    {"wo", "*.attention.output.dense.weight"},
    {"wo", "*.attn_output.weight"},
    {"wo", "*.attn.proj.weight"},
    {"wo", "*.to_out.0.weight"},
    {"wo", "*.selfattention.o.weight"},
    {"wo", "*.encdecattention.o.weight"},
};

/// Parts that a layer's number follows, as in "h.4" and "layers_4".
constexpr std::string_view kLayerWords[] = {"layer", "layers",       "h",        "block", "blocks",
                                            "blk",   "encoderblock", "resblocks"};

std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] == '-' || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "layerN." in front of a name of the format.
std::optional<TensorName> exact(std::string_view name) {
  TensorName found;
  found.exact = true;
  constexpr std::string_view kWord = "layer";
  const size_t dot = name.find('.');
  if (name.starts_with(kWord) && dot != name.npos) {
    const auto layer = number_of(name.substr(kWord.size(), dot - kWord.size()));
    if (!layer) return std::nullopt;
    found.layer = *layer;
    name.remove_prefix(dot + 1);
  }
  if (std::ranges::find(kInputs, name) == std::end(kInputs) && std::ranges::find(kResults, name) == std::end(kResults))
    return std::nullopt;
  found.tensor = name;
  return found;
}

std::vector<std::string> parts_of(std::string_view name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.' || c == '/') parts.emplace_back();
    else parts.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return parts;
}

bool is_layer_word(std::string_view part) { return std::ranges::find(kLayerWords, part) != std::end(kLayerWords); }

/// The N of "layers_N" or "layersN".
std::optional<int> number_behind_word(std::string_view part) {
  const size_t digits = part.find_last_not_of("0123456789") + 1;
  std::string_view word = part.substr(0, digits);
  if (word.ends_with('_')) word.remove_suffix(1);
  return is_layer_word(word) ? number_of(part.substr(digits)) : std::nullopt;
}

/// The layer that the first such parts say; they and all before them are taken away.
int take_layer(std::vector<std::string>& parts) {
  for (size_t n = 0; n < parts.size(); ++n) {
    size_t used = 1;
    auto layer = number_behind_word(parts[n]);
    if (!layer && is_layer_word(parts[n]) && n + 1 < parts.size()) {
      layer = number_of(parts[n + 1]);
      used = 2;
    }
    if (!layer) continue;
    parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(n + used));
    return *layer;
  }
  return -1;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ".") + part;
  return text;
}

bool fits(std::string_view pattern, std::string_view name) {
  if (!pattern.starts_with("*.")) return name == pattern;
  return name == pattern.substr(2) || name.ends_with(pattern.substr(1));
}

}  // namespace

std::optional<TensorName> understand(std::string_view name) {
  if (auto found = exact(name)) return found;
  std::vector<std::string> parts = parts_of(name);
  const int layer = take_layer(parts);
  const std::string rest = joined(parts);
  const auto* at = std::ranges::find_if(kPatterns, [&](const Pattern& p) { return fits(p.pattern, rest); });
  if (at == std::end(kPatterns)) return std::nullopt;
  return TensorName{std::string(at->tensor), layer, false};
}

bool is_input(std::string_view tensor) { return std::ranges::find(kInputs, tensor) != std::end(kInputs); }

}  // namespace qkv::cli
