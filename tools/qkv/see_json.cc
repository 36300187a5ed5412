#include "qkv/see_json.h"

namespace qkv::cli {

namespace {

constexpr const char* kKeys[kPlaces] = {"itself", "previous", "next", "first", "last"};

void add_tokens(nlohmann::json& json, const Link& link, const Tokens& tokens) {
  if (!tokens.queries.empty()) json["query_token"] = tokens.queries[static_cast<size_t>(link.query)];
  if (!tokens.keys.empty()) json["key_token"] = tokens.keys[static_cast<size_t>(link.key)];
}

}  // namespace

nlohmann::json json_of(const Link& link, const Tokens& tokens) {
  nlohmann::json json = {{"query", link.query}, {"key", link.key}, {"weight", link.weight}};
  add_tokens(json, link, tokens);
  return json;
}

nlohmann::json json_of(const HeadFacts& f, const Layer& layer, int64_t head, const Tokens& tokens) {
  nlohmann::json shares = nlohmann::json::object();
  for (int p = 0; p < kPlaces; ++p) {
    if (f.share[p] >= 0) shares[kKeys[p]] = f.share[p];
  }
  nlohmann::json json = {{"head", head},    {"entropy", f.entropy},       {"effective_keys", f.effective_keys},
                         {"share", shares}, {"empty_rows", f.empty_rows}, {"padding_rows", f.padding_rows}};
  json["layer"] = layer.number() < 0 ? nlohmann::json() : nlohmann::json(layer.number());
  json["habit"] =
      f.of(f.favourite()) >= kHabit ? nlohmann::json(kKeys[static_cast<int>(f.favourite())]) : nlohmann::json();
  json["strongest"] = f.links.empty() ? nlohmann::json() : json_of(f.links.front(), tokens);
  return json;
}

nlohmann::json json_of(const std::vector<RankedLink>& links, const Tokens& tokens) {
  nlohmann::json list = nlohmann::json::array();
  for (const RankedLink& r : links) {
    nlohmann::json json = json_of(r.link, tokens);
    json["head"] = r.head;
    if (r.usual >= 0) json["usual"] = r.usual;
    list.push_back(std::move(json));
  }
  return list;
}

std::string text_of(const nlohmann::json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace qkv::cli
