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

}  // namespace

std::string explanation_json(const Explanation& e, const Problem& p, const std::vector<TensorFacts>& tensors,
                             const Tokens& tokens) {
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
  for (const KeySteps& k : e.keys) all["keys"].push_back(json_of(k, e, tokens));
  for (const Keyless& k : e.keyless)
    all["keyless"].push_back({{"name", k.name}, {"score", k.score}, {"exponential", k.exponential}});
  for (const Agreement& a : e.agreements)
    all["library"].push_back(
        {{"what", a.what}, {"difference", a.difference}, {"allowed", a.allowed}, {"holds", a.holds()}});
  return text_of(all);
}

}  // namespace qkv::cli
