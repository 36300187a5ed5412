#include <fmt/format.h>

#include "qkv/fold.h"
#include "qkv/see.h"
#include "qkv/see_json.h"
#include "qkv/table.h"

namespace qkv::cli {

namespace {

Rank rank_of(const SeeOptions& o) { return o.rank.value_or(Rank::kSurprise); }

std::string number(int layer) { return layer < 0 ? "-" : std::to_string(layer); }

std::string share(double s) { return s < 0 ? "-" : fmt::format("{:.2f}", s); }

std::string link_text(const Link& link, const Tokens& tokens) {
  return fmt::format("{} -> {}", token_name(tokens.queries, link.query), token_name(tokens.keys, link.key));
}

std::string habit(const HeadFacts& f) {
  return f.of(f.favourite()) >= kHabit ? fmt::format("looks at {}", name(f.favourite())) : "";
}

std::string table_of_heads(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens,
                           const Screen& screen) {
  Table table({{"layer", Side::kRight},
               {"head", Side::kRight},
               {"entropy", Side::kRight, Narrow::kDrop},
               {"keys", Side::kRight, Narrow::kDrop},
               {"itself", Side::kRight, Narrow::kFirst},
               {"previous", Side::kRight, Narrow::kFirst},
               {"next", Side::kRight, Narrow::kFirst},
               {"first", Side::kRight, Narrow::kFirst},
               {"last", Side::kRight, Narrow::kFirst},
               {"strongest link", Side::kLeft, Narrow::kCut},
               {"", Side::kRight},
               {"habit", Side::kLeft, Narrow::kDrop}});
  for (const Layer& layer : layers) {
    const std::vector<HeadFacts> facts = layer.facts(o.batch, 1);
    for (size_t h = 0; h < facts.size(); ++h) {
      const HeadFacts& f = facts[h];
      std::vector<std::string> cells = {number(layer.number()), std::to_string(h), fmt::format("{:.2f}", f.entropy),
                                        fmt::format("{:.1f}", f.effective_keys)};
      for (double s : f.share) cells.push_back(share(s));
      cells.push_back(f.links.empty() ? "sees nothing" : link_text(f.links.front(), tokens));
      cells.push_back(f.links.empty() ? "" : fmt::format("{:.3f}", f.links.front().weight));
      cells.push_back(habit(f));
      table.add(std::move(cells));
    }
  }
  return "Heads: mean entropy in nats, effective number of keys, mean weight on five places\n" + table.text(screen);
}

std::string table_of_links(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens,
                           const Screen& screen) {
  Table table({{"layer", Side::kRight},
               {"head", Side::kRight},
               {"query", Side::kRight, Narrow::kCut},
               {"", Side::kLeft},
               {"key", Side::kLeft, Narrow::kCut},
               {"weight", Side::kRight},
               {"usual", Side::kRight, Narrow::kDrop}});
  bool ranked = false;
  for (const Layer& layer : layers) {
    for (const RankedLink& r : rank_links(layer, o.batch, -1, o.top, rank_of(o))) {
      ranked = ranked || r.usual >= 0;
      table.add({number(layer.number()), std::to_string(r.head), token_name(tokens.queries, r.link.query), "->",
                 token_name(tokens.keys, r.link.key), fmt::format("{:.3f}", r.link.weight),
                 r.usual < 0 ? "" : fmt::format("{:.3f}", r.usual)});
    }
  }
  const std::string title = fmt::format(
      "Strongest links{}{}\n", layers.size() > 1 ? " of every layer" : "",
      rank_of(o) == Rank::kSurprise && ranked ? " beyond the usual (without links to itself and the first key)" : "");
  const char* usual =
      ranked ? "usual: what other queries of the head give to the same key, or at the same distance (the larger mean)\n"
             : "";
  return title + table.text(screen) + usual;
}

}  // namespace

std::string heads_text(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens,
                       const Screen& screen) {
  const std::string links = table_of_links(o, layers, tokens, screen);
  return fold(o.only_links ? links : table_of_heads(o, layers, tokens, screen) + "\n" + links, screen);
}

std::string heads_json(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens) {
  nlohmann::json all = nlohmann::json::array();
  for (const Layer& layer : layers) {
    nlohmann::json heads = nlohmann::json::array();
    const std::vector<HeadFacts> facts = layer.facts(o.batch, 1);
    for (size_t h = 0; h < facts.size(); ++h)
      heads.push_back(json_of(facts[h], layer, static_cast<int64_t>(h), tokens));
    all.push_back({{"layer", layer.number() < 0 ? nlohmann::json() : nlohmann::json(layer.number())},
                   {"heads", std::move(heads)},
                   {"links", json_of(rank_links(layer, o.batch, -1, o.top, rank_of(o)), tokens)}});
  }
  return text_of({{"layers", std::move(all)}});
}

}  // namespace qkv::cli
