#include "core/parallel.h"
#include "qkv/explain.h"
#include "qkv/rules.h"
#include "qkv/see_json.h"

namespace qkv::cli {

namespace {

using nlohmann::json;

json json_of(const TensorFacts& t) {
  json fact = {{"name", t.name}, {"shape", t.shape}, {"type", t.type}, {"bytes", t.bytes}};
  if (t.rows > 0 && t.other_rows < t.rows) fact["row_sums"] = {t.lowest, t.highest};
  return fact;
}

json json_of(const KeySteps& k, const Explanation& e, const Tokens& tokens) {
  json key = {{"key", k.key},
              {"dot", k.dot},
              {"scaled", k.scaled},
              {"modified", k.modified},
              {"score", k.score()},
              {"hidden_by", k.rule == kVisible ? json() : json(e.rules[k.rule])},
              {"exponential", k.exponential},
              {"weight", k.weight},
              {"value", k.value}};
  if (!tokens.keys.empty()) key["token"] = tokens.keys[static_cast<size_t>(k.key)];
  return key;
}

/// Gradients stand beside what they are gradients by.
json json_of(const KeyGradients& k) {
  return {{"dweight", k.by_weight},
          {"dscore", k.by_score.back()},
          {"dscaled", k.by_score.front()},
          {"dmodified", std::vector<double>(k.by_score.begin() + 1, k.by_score.end())},
          {"dk", k.key},
          {"dv", k.value}};
}
void add_gradients(json& all, const Explanation& e) {
  const QueryGradients& g = *e.gradients;
  all["dout"] = g.dout;
  if (g.dlse) all["dlse"] = *g.dlse;
  all["delta"] = g.delta;
  all["dq"] = g.query;
  for (size_t n = 0; n < g.keyless.size(); ++n) all["keyless"][n]["dscore"] = g.keyless[n];
}

/// The text of `all`, whose list of keys is empty, with the keys. Each becomes text by itself: there may be millions.
std::string text_with_keys(const json& all, const Explanation& e, const Tokens& tokens, const Call& call) {
  const std::string empty = "\n  \"keys\": []", before = "{\n  \"keys\": [", after = "\n  ]\n}\n";
  std::string text = text_of(all);
  if (e.keys.empty()) return text;
  const size_t at = text.find(empty) + empty.size() - 1;  // a line end does not occur within the texts of JSON
  const std::string rest = text.substr(at);
  text.resize(at);
  for (size_t n = 0; n < e.keys.size(); ++n) {
    stop_point(call.stop);
    json key = json_of(e.keys[n], e, tokens);
    if (e.gradients) key.update(json_of(e.gradients->of[n]));
    const std::string alone = text_of({{"keys", json::array({std::move(key)})}});
    if (n > 0) text += ',';
    text.append(alone, before.size(), alone.size() - before.size() - after.size());
  }
  return text + "\n  " + rest;
}

}  // namespace

std::string explanation_json(const Explanation& e, const Problem& p, const std::vector<TensorFacts>& tensors,
                             const Tokens& tokens, const Call& call) {
  json all = {{"attention", p.attention.text()},
              {"batch", e.batch},
              {"head", e.head},
              {"query", e.query},
              {"q", e.query_vector},
              {"scale", e.scale},
              {"modifiers", e.modifiers},
              {"missing_keys", e.missing_keys},
              {"maximum", e.maximum},
              {"sum", e.sum},
              {"log_sum_exp", e.lse},
              {"out", e.out},
              {"tensors", json::array()},
              {"keys", json::array()},
              {"keyless", json::array()},
              {"library", json::array()}};
  if (!tokens.queries.empty()) all["token"] = tokens.queries[static_cast<size_t>(e.query)];
  if (!e.projected.empty()) all["projected"] = e.projected;
  for (const TensorFacts& t : tensors) all["tensors"].push_back(json_of(t));
  for (const Keyless& k : e.keyless)
    all["keyless"].push_back({{"name", k.name}, {"score", k.score}, {"exponential", k.exponential}});
  if (e.gradients) add_gradients(all, e);
  for (const Agreement& a : e.agreements)
    all["library"].push_back({{"what", a.what},
                              {"function", a.function},
                              {"difference", a.difference},
                              {"allowed", a.allowed},
                              {"holds", a.holds()}});
  return text_with_keys(all, e, tokens, call);
}

}  // namespace qkv::cli
