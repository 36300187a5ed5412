#include "qkv/training/model_json.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::cli {
namespace {

using Options = nn::LanguageModel::Options;
constexpr std::array<const char*, 6> kPositions{"none", "sinusoidal", "learned", "rope", "alibi", "t5"};
constexpr std::array<const char*, 4> kActivations{"relu", "gelu", "gelu_tanh", "silu"};
constexpr std::array<const char*, 2> kNorms{"layer", "rms"};

/// The number of a name in a list. Throws OptionError.
template <size_t N>
size_t index_of(const std::array<const char*, N>& names, const std::string& name, const char* what) {
  const auto at = std::ranges::find_if(names, [&](const char* n) { return name == n; });
  if (at != names.end()) return size_t(at - names.begin());
  std::string list;
  for (const char* n : names) list += (list.empty() ? "" : ", ") + std::string(n);
  throw OptionError(fmt::format("{} is '{}', expected one of {}", what, name, list));
}

}  // namespace

const char* name_of(nn::Positions p) { return kPositions[size_t(p)]; }
nn::Positions positions_of(const std::string& name) { return nn::Positions(index_of(kPositions, name, "positions")); }

nlohmann::ordered_json json_of(const Options& o) {
  nlohmann::ordered_json attention = nlohmann::ordered_json::array();
  for (const Attention& a : o.attention) attention.push_back(a.text());
  return {{"vocabulary", o.vocabulary}, {"context", o.context},
          {"width", o.width},           {"layers", o.layers},
          {"heads", o.heads},           {"key_heads", o.key_heads},
          {"hidden", o.hidden},         {"positions", name_of(o.positions)},
          {"attention", attention},     {"activation", kActivations[size_t(o.activation)]},
          {"is_gated", o.is_gated},     {"norm", kNorms[size_t(o.norm)]},
          {"has_bias", o.has_bias},     {"ties_weights", o.ties_weights},
          {"dropout", o.dropout}};
}

Options language_model_options(const nlohmann::json& json) {
  try {
    Options o;
    const auto number = [&](const char* name) { return json.at(name).get<int64_t>(); };
    o.vocabulary = number("vocabulary"), o.context = number("context"), o.width = number("width");
    o.layers = number("layers"), o.heads = number("heads");
    o.key_heads = number("key_heads"), o.hidden = number("hidden");
    constexpr int64_t kMost = int64_t{1} << 24;  // of each: a file can claim anything
    for (const int64_t n : {o.vocabulary, o.context, o.width, o.layers, o.heads, o.key_heads, o.hidden})
      if (n < 0 || n > kMost) throw OptionError(fmt::format("it has a size of {}", n));
    o.positions = positions_of(json.at("positions").get<std::string>());
    for (const auto& text : json.at("attention")) o.attention.push_back(Attention::parse(text.get<std::string>()));
    o.activation = nn::Activation(index_of(kActivations, json.at("activation").get<std::string>(), "activation"));
    o.norm = nn::NormKind(index_of(kNorms, json.at("norm").get<std::string>(), "norm"));
    o.is_gated = json.at("is_gated").get<bool>(), o.has_bias = json.at("has_bias").get<bool>();
    o.ties_weights = json.at("ties_weights").get<bool>(), o.dropout = json.at("dropout").get<double>();
    return o;
  } catch (const nlohmann::json::exception& e) {
    throw FileError(fmt::format("the model's configuration is damaged: {}", e.what()));
  } catch (const OptionError& e) {
    throw FileError(fmt::format("the model's configuration is damaged: {}", e.what()));
  }
}

}  // namespace qkv::cli
