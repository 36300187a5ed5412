#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "qkv/bar.h"
#include "qkv/fold.h"
#include "qkv/masks.h"
#include "qkv/part.h"
#include "qkv/rules.h"
#include "qkv/see.h"
#include "qkv/see_json.h"
#include "qkv/table.h"

namespace qkv::cli {

namespace {

constexpr int kWidestBar = 40;

std::vector<std::string> hidden_keys(const Problem& whole, int64_t batch, int64_t head, int64_t query) {
  const Problem part = part_of(whole, {batch, head, query, 1});
  Array rules(DType::kUInt8, {1, 1, 1, part.sizes.keys});
  hiding_rule_of(part.attention, part.inputs, rules.view().as<uint8_t>());
  std::array<int64_t, 256> count{};
  for (int64_t j = 0; j < part.sizes.keys; ++j) ++count[static_cast<const uint8_t*>(rules.data())[j]];
  const std::vector<std::string> names = rule_names(part.attention);
  std::vector<std::string> hidden;
  if (count[kNoKey] > 0) hidden.push_back(fmt::format("{} do not exist (past the length)", count[kNoKey]));
  for (size_t r = kFirstRule; r < names.size(); ++r) {
    if (count[r] > 0) hidden.push_back(fmt::format("{} hidden by {}", count[r], names[r]));
  }
  return hidden;
}

}  // namespace

RowKeys keys_of_row(const Layer& layer, int64_t batch, int64_t head, int64_t query) {
  const std::vector<double> weights = layer.row(batch, head, query);
  RowKeys row;
  for (size_t j = 0; j < weights.size(); ++j) {
    row.sum += weights[j];
    if (weights[j] != 0) row.keys.push_back({static_cast<int64_t>(j), weights[j]});
  }
  const auto rank = [](const RowKeys::Key& k) { return std::isnan(k.weight) ? INFINITY : k.weight; };
  std::stable_sort(row.keys.begin(), row.keys.end(),
                   [&](const RowKeys::Key& a, const RowKeys::Key& b) { return rank(a) > rank(b); });
  if (const Problem* p = layer.problem(); p != nullptr && query < queries_of(*p, batch))
    row.hidden = hidden_keys(*p, batch, head, query);
  return row;
}

std::string row_text(const SeeOptions& o, const Layer& layer, const Tokens& tokens, const Screen& screen) {
  const RowKeys row = keys_of_row(layer, o.batch, o.head, o.row);
  std::string text = fmt::format("{}{}, query {}{}: whom it looks at (weights {})\n\n", bold(screen.colors),
                                 head_name(layer, o.head, o.batch), token_name(tokens.queries, o.row),
                                 plain(screen.colors), source_of(o, layer));
  if (row.keys.empty()) text += "It sees no key.\n";
  const size_t shown = std::min(row.keys.size(), static_cast<size_t>(o.top));
  int widest = 0;
  for (size_t n = 0; n < shown; ++n) widest = std::max(widest, display_width(token_name(tokens.keys, row.keys[n].key)));
  Table table({{"key", Side::kLeft, Narrow::kCut}, {"weight", Side::kRight}, {"", Side::kLeft}});
  double rest = row.sum;
  for (size_t n = 0; n < shown; ++n) {
    const auto [key, weight] = row.keys[n];
    rest -= weight;
    table.add({token_name(tokens.keys, key), fmt::format("{:.4f}", weight),
               bar(weight / row.keys.front().weight, std::clamp(screen.columns - widest - 12, 4, kWidestBar), screen)});
  }
  if (!table.empty()) text += table.text(screen);
  if (row.keys.size() > shown)
    text += fmt::format("{} more keys share {:.4f}\n", row.keys.size() - shown, std::max(0.0, rest));
  if (const Problem* p = layer.problem(); p != nullptr && (p->attention.has_sinks() || p->attention.has_zero_key()))
    text += fmt::format("the sink takes {:.4f}\n", 1 - row.sum);
  for (const std::string& h : row.hidden) text += "of its keys " + h + "\n";
  return fold(text, screen);
}

std::string row_json(const SeeOptions& o, const Layer& layer, const Tokens& tokens) {
  const RowKeys row = keys_of_row(layer, o.batch, o.head, o.row);
  nlohmann::json json = {{"layer", layer.number() < 0 ? nlohmann::json() : nlohmann::json(layer.number())},
                         {"head", o.head},
                         {"query", o.row},
                         {"sum", row.sum},
                         {"hidden", row.hidden},
                         {"keys", nlohmann::json::array()}};
  if (!tokens.queries.empty()) json["query_token"] = tokens.queries[static_cast<size_t>(o.row)];
  for (const auto& [key, weight] : row.keys) {
    nlohmann::json entry = {{"key", key}, {"weight", weight}};
    if (!tokens.keys.empty()) entry["token"] = tokens.keys[static_cast<size_t>(key)];
    json["keys"].push_back(std::move(entry));
  }
  return text_of(json);
}

}  // namespace qkv::cli
