#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "qkv/error.h"
#include "qkv/fold.h"
#include "qkv/heatmap.h"
#include "qkv/see.h"
#include "qkv/see_json.h"
#include "qkv/table.h"

namespace qkv::cli {

namespace {

std::string title(const SeeOptions& o, const Layer& layer, const Screen& screen) {
  return fmt::format("{}{}{}: each row is a query and says which keys it looks at (weights {})\n\n",
                     bold(screen.colors), head_name(layer, o.head, o.batch), plain(screen.colors), source_of(o, layer));
}

std::string table_of(const std::vector<RankedLink>& links, const Layer& layer, int64_t batch, const Tokens& tokens,
                     const Screen& screen) {
  Table table({{"query", Side::kRight, Narrow::kCut},
               {"", Side::kLeft},
               {"key", Side::kLeft, Narrow::kCut},
               {"weight", Side::kRight},
               {"usual", Side::kRight, Narrow::kDrop},
               {"distance", Side::kRight, Narrow::kDrop}});
  for (const RankedLink& r : links) {
    table.add({token_name(tokens.queries, r.link.query), "->", token_name(tokens.keys, r.link.key),
               fmt::format("{:.3f}", r.link.weight), r.usual < 0 ? "" : fmt::format("{:.3f}", r.usual),
               fmt::format("{:+}", r.link.key - (r.link.query + layer.offset(batch)))});
  }
  return table.text(screen);
}

constexpr const char* kUsual =
    "usual: what other queries of this head give to the same key, or at the same distance (the larger mean)\n";

/// Which tokens are named in --between.
std::vector<bool> named_in(const std::string& words, const std::vector<std::string>& tokens, int64_t count) {
  std::vector<bool> named(static_cast<size_t>(count));
  for (size_t n = 0; n < tokens.size(); ++n) {
    for (size_t first = 0; first <= words.size();) {
      const size_t last = std::min(words.find(',', first), words.size());
      if (words.compare(first, last - first, tokens[n]) == 0) named[n] = true;
      first = last + 1;
    }
  }
  return named;
}

/// Of a head with a habit every link is usual, so that the rest would be noise.
Rank rank_of(const SeeOptions& o, const HeadFacts& f) {
  return o.rank.value_or(f.of(f.favourite()) >= kHabit ? Rank::kWeight : Rank::kSurprise);
}

std::vector<RankedLink> chosen_links(const SeeOptions& o, const Layer& layer, const Tokens& tokens, Rank rank) {
  if (o.between.empty()) return rank_links(layer, o.batch, o.head, o.top, rank);
  const auto queries = named_in(o.between, tokens.queries, layer.queries()),
             keys = named_in(o.between, tokens.keys, layer.keys());
  auto links = links_between(layer, o.batch, o.head, queries, keys);
  if (links.empty())
    throw OptionError(fmt::format("--between {}: no such tokens; they are compared as they are shown", o.between));
  return links;
}

}  // namespace

const char* source_of(const SeeOptions& o, const Layer& layer) {
  if (layer.problem() != nullptr) return "computed from q and k";
  return o.typed ? "from the file" : "as given";
}

std::string description(const HeadFacts& f) {
  const Place place = f.favourite();
  std::string text;
  if (f.of(place) >= kHabit) {
    text = fmt::format(
        "This head looks at {}, whatever the words are: {:.2f} of the weight of every query that has one.\n",
        name(place), f.of(place));
  } else if (f.of(place) >= 0) {
    text =
        fmt::format("Position alone does not explain this head: its favourite place, {}, gets {:.2f} of the weight.\n",
                    name(place), f.of(place));
  }
  text += fmt::format("Entropy {:.2f} nats, as if a query looked at {:.1f} keys alike.", f.entropy, f.effective_keys);
  const char* before = " Mean weight on";
  for (int p = 0; p < kPlaces; ++p) {
    if (f.share[p] < 0) continue;
    text += fmt::format("{} {} {:.2f}", before, name(static_cast<Place>(p)), f.share[p]);
    before = ",";
  }
  text += text.ends_with('.') ? "\n" : ".\n";
  if (f.padding_rows > 0) text += fmt::format("{} queries are padding and left out.\n", f.padding_rows);
  if (f.empty_rows > 0) text += fmt::format("{} queries see no key.\n", f.empty_rows);
  return text;
}

std::string token_name(const std::vector<std::string>& tokens, int64_t index) {
  if (tokens.empty()) return std::to_string(index);
  return fmt::format("{}({})", tokens[static_cast<size_t>(index)], index);
}

std::string head_text(const SeeOptions& o, const Layer& layer, const Tokens& tokens, const Screen& screen) {
  const Matrix picture = layer.picture(o.batch, o.head, o.measure());
  const HeadFacts facts = layer.facts(o.batch, 1, o.head);
  std::string text = title(o, layer, screen);
  text += render_heatmap(picture, {tokens.queries, tokens.keys}, o.scale, screen);
  text += "\n" + description(facts);
  const Rank rank = rank_of(o, facts);
  const std::vector<RankedLink> links = chosen_links(o, layer, tokens, rank);
  if (links.empty()) return fold(text, screen);
  const bool ranked = links.front().usual >= 0;
  const char* what = "Strongest links";
  if (!o.between.empty()) what = "Links between these tokens";
  else if (ranked && rank == Rank::kSurprise)
    what = "Strongest links beyond the usual (without links to itself and the first key)";
  text += fmt::format("\n{}{}{}\n{}", bold(screen.colors), what, plain(screen.colors),
                      table_of(links, layer, o.batch, tokens, screen));
  return fold(ranked ? text + kUsual : text, screen);
}

std::string head_json(const SeeOptions& o, const Layer& layer, const Tokens& tokens) {
  const HeadFacts facts = layer.facts(o.batch, o.top, o.head);
  nlohmann::json json = json_of(facts, layer, o.head, tokens);
  json["links"] = json_of(chosen_links(o, layer, tokens, rank_of(o, facts)), tokens);
  return text_of(json);
}

}  // namespace qkv::cli
