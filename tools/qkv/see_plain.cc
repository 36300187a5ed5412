// Sentences for screen readers.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "qkv/error.h"
#include "qkv/numbers.h"
#include "qkv/see.h"

namespace qkv::cli {

namespace {

constexpr int64_t kMostRows = 64;
constexpr size_t kKeysOfARow = 3;

/// "bad(5) looks at not(4) 0.56, was(3) 0.25; 11 more keys share 0.19."
std::string sentence(const RowKeys& row, const std::string& query, const Tokens& tokens, size_t most) {
  if (row.keys.empty()) return fmt::format("{} sees no key.", query);
  const size_t shown = std::min(row.keys.size(), most);
  std::vector<std::string> keys;
  double rest = row.sum;
  for (size_t n = 0; n < shown; ++n) {
    rest -= row.keys[n].weight;
    keys.push_back(fmt::format("{} {:.2f}", token_name(tokens.keys, row.keys[n].key), row.keys[n].weight));
  }
  std::string text = fmt::format("{} looks at {}", query, fmt::join(keys, ", "));
  if (row.keys.size() > shown)
    text += fmt::format("; {} more keys share {:.2f}", row.keys.size() - shown, std::max(0.0, rest));
  return text + ".";
}

std::string query_name(const Tokens& tokens, int64_t query) {
  return tokens.queries.empty() ? fmt::format("Query {}", query) : token_name(tokens.queries, query);
}

std::string upper(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string head_sentence(const HeadFacts& f, const std::string& name, const Tokens& tokens) {
  if (f.links.empty()) return name + " sees nothing.";
  const Link& link = f.links.front();
  std::string text = fmt::format("{}: entropy {:.2f} nats, {:.1f} keys alike", name, f.entropy, f.effective_keys);
  if (f.of(f.favourite()) >= kHabit)
    text += fmt::format("; looks at {}, {:.2f} of the weight", qkv::cli::name(f.favourite()), f.of(f.favourite()));
  return text + fmt::format("; strongest from {} to {}, {:.2f}.", token_name(tokens.queries, link.query),
                            token_name(tokens.keys, link.key), link.weight);
}

}  // namespace

std::string plain_row(const SeeOptions& o, const Layer& layer, const Tokens& tokens) {
  const RowKeys row = keys_of_row(layer, o.batch, o.head, o.row);
  std::string text = fmt::format("{}. {}\n", upper(head_name(layer, o.head, o.batch)),
                                 sentence(row, query_name(tokens, o.row), tokens, static_cast<size_t>(o.top)));
  for (const std::string& h : row.hidden) text += fmt::format("Of its keys {}.\n", h);
  return text;
}

std::string plain_head(const SeeOptions& o, const Layer& layer, const Tokens& tokens) {
  std::string text = fmt::format("{}: {} queries and {} keys, weights {}.\n", upper(head_name(layer, o.head, o.batch)),
                                 layer.queries(), layer.keys(), source_of(o, layer));
  text += description(layer.facts(o.batch, 1, o.head));
  for (int64_t i = 0; i < std::min(layer.queries(), kMostRows); ++i)
    text += sentence(keys_of_row(layer, o.batch, o.head, i), query_name(tokens, i), tokens, kKeysOfARow) + "\n";
  if (layer.queries() > kMostRows)
    text += fmt::format("{} more queries are left out; {} reads one.\n", layer.queries() - kMostRows, o.row_option());
  return text;
}

std::string gradient_plain(const SeeOptions& o, const Layer& layer, const Tokens& tokens) {
  const Attribution a = layer.attribution(o.batch, o.head, static_cast<size_t>(o.top));
  std::string text = fmt::format("{}: what its links add to the loss, weight times gradient; together {}.\n",
                                 upper(head_name(layer, o.head, o.batch)), number(a.sum));
  for (const AttributedLink& link : a.links)
    text += fmt::format("{} to {}: {}, of weight {:.3f} and gradient {}.\n", token_name(tokens.queries, link.query),
                        token_name(tokens.keys, link.key), number(link.share()), link.weight, number(link.gradient));
  return text;
}

std::string plain_heads(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens) {
  std::string text;
  for (const Layer& layer : layers) {
    const std::vector<HeadFacts> facts = layer.facts(o.batch, 1);
    for (size_t h = 0; h < facts.size(); ++h)
      text += head_sentence(facts[h], upper(head_name(layer, static_cast<int64_t>(h), o.batch)), tokens) + "\n";
  }
  return text;
}

std::string plain_mask(const SeeOptions& o, const Layer& layer) {
  std::string text = fmt::format("{}: {}.\n", upper(head_name(layer, o.head, o.batch)),
                                 layer.problem() == nullptr ? "" : layer.problem()->attention.text());
  for (const RuleCount& c : count_rules(o, layer)) text += fmt::format("{} pairs: {}.\n", c.pairs, c.name);
  return text;
}

}  // namespace qkv::cli
