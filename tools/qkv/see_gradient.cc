// What each link adds to a loss.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "qkv/fold.h"
#include "qkv/heatmap.h"
#include "qkv/numbers.h"
#include "qkv/see.h"
#include "qkv/see_json.h"
#include "qkv/table.h"

namespace qkv::cli {

namespace {

std::string table_of(const std::vector<AttributedLink>& links, const Tokens& tokens, const Screen& screen) {
  Table table({{"query", Side::kRight, Narrow::kCut},
               {"", Side::kLeft},
               {"key", Side::kLeft, Narrow::kCut},
               {"weight", Side::kRight, Narrow::kDrop},
               {"gradient", Side::kRight, Narrow::kDrop},
               {"product", Side::kRight}});
  for (const AttributedLink& link : links)
    table.add({token_name(tokens.queries, link.query), "->", token_name(tokens.keys, link.key),
               fmt::format("{:.3f}", link.weight), number(link.gradient), number(link.share())});
  return table.text(screen);
}

}  // namespace

std::string gradient_text(const SeeOptions& o, const Layer& layer, const Tokens& tokens, const Screen& screen) {
  const Attribution a = layer.attribution(o.batch, o.head, static_cast<size_t>(o.top));
  std::string text =
      fmt::format("{}{}{}: each row is a query and says what its keys add to the loss, weight times gradient\n\n",
                  bold(screen.colors), head_name(layer, o.head, o.batch), plain(screen.colors));
  text += render_heatmap(a.picture, {tokens.queries, tokens.keys}, o.scale, screen);
  text += fmt::format("\nAll links together: {}, the sum of dout {} out.\n", number(a.sum), screen.unicode ? "·" : "*");
  if (!a.links.empty())
    text += fmt::format(
        "\n{}Links that add or take most{}\n{}gradient: dout {} v of the key, by how much the loss grows "
        "with the weight\n",
        bold(screen.colors), plain(screen.colors), table_of(a.links, tokens, screen), screen.unicode ? "·" : "*");
  return fold(text, screen);
}

std::string gradient_json(const SeeOptions& o, const Layer& layer, const Tokens& tokens) {
  const Attribution a = layer.attribution(o.batch, o.head, static_cast<size_t>(o.top));
  nlohmann::json links = nlohmann::json::array();
  for (const AttributedLink& link : a.links) {
    nlohmann::json json = json_of(Link{link.query, link.key, static_cast<float>(link.weight)}, tokens);
    json["gradient"] = link.gradient;
    json["product"] = link.share();
    links.push_back(std::move(json));
  }
  return text_of({{"layer", layer.number() < 0 ? nlohmann::json() : nlohmann::json(layer.number())},
                  {"head", o.head},
                  {"sum", a.sum},
                  {"links", std::move(links)}});
}

}  // namespace qkv::cli
