#include "qkv/see_page.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/output_file.h"
#include "qkv/colormap.h"
#include "qkv/error.h"
#include "qkv/labels.h"
#include "qkv/see_json.h"
#include "qkv/version.h"

namespace qkv::cli {

namespace {

using nlohmann::json;

constexpr int64_t kMostHalves =
    256 * 256;                             // pairs of a head that is not plain; fewer where the page would be too large
constexpr size_t kFewHeads = 4;            // that many have room for a finer overview
constexpr double kRoomForTheRest = 400e3;  // the page itself, and the facts about heads

PagePart part_of(const SeeOptions& o, const std::vector<Layer>& layers, const Layer& layer) {
  PagePart part;
  part.batches.resize(static_cast<size_t>(layer.batches()));
  std::iota(part.batches.begin(), part.batches.end(), 0);
  if (o.one_batch) part.batches = {o.batch};
  part.heads.resize(static_cast<size_t>(layer.heads()));
  std::iota(part.heads.begin(), part.heads.end(), 0);
  if (o.head >= 0) part.heads = {o.head};
  if (layers.size() * part.batches.size() * part.heads.size() <= kFewHeads) part.overview_side = 512;
  return part;
}

std::vector<CellSource> choose_for_all(const std::vector<Layer>& layers, const std::vector<PagePart>& parts,
                                       int64_t most_pairs, double& size) {
  std::vector<CellSource> chosen;
  size = kRoomForTheRest;
  for (size_t n = 0; n < layers.size(); ++n) {
    chosen.push_back(choose_cells(layers[n], parts[n], most_pairs));
    size += size_of_cells(layers[n], parts[n], chosen.back());
  }
  return chosen;
}

[[noreturn]] void refuse(const SeeOptions& o, const std::vector<Layer>& layers, const std::vector<PagePart>& parts,
                         double size) {
  const auto& most = std::max_element(parts.begin(), parts.end(), [](const PagePart& a, const PagePart& b) {
    return a.heads.size() * a.batches.size() < b.heads.size() * b.batches.size();
  });
  const Layer& layer = layers[static_cast<size_t>(most - parts.begin())];
  std::string advice;
  if (o.layer < 0 && layers.size() > 1) advice += ", one layer with " + o.option("layer");
  if (o.head < 0 && layer.heads() > 1) advice += ", one head with " + o.option("head");
  if (!o.one_batch && layer.batches() > 1) advice += ", one batch entry with " + o.option("batch");
  throw OptionError(fmt::format(
      "the page would have about {:.0f} MB and may have {:.0f} ({} of {} of {}, {} queries, {} keys); choose {}",
      size / 1e6, kLargestPage / 1e6, layers.size() == 1 ? "1 layer" : fmt::format("{} layers", layers.size()),
      most->batches.size() == 1 ? "1 batch entry" : fmt::format("{} batch entries", most->batches.size()),
      most->heads.size() == 1 ? "1 head" : fmt::format("{} heads", most->heads.size()), layer.queries(), layer.keys(),
      advice.empty() ? "a shorter sequence" : advice.substr(2)));
}

/// Lists of tokens, each once.
class TokenLists {
 public:
  json number(const std::vector<std::string>& tokens) {
    if (tokens.empty()) return nullptr;
    const auto at = std::find(lists_.begin(), lists_.end(), tokens);
    if (at != lists_.end()) return at - lists_.begin();
    lists_.push_back(tokens);
    return lists_.size() - 1;
  }
  const std::vector<std::vector<std::string>>& lists() const { return lists_; }

 private:
  std::vector<std::vector<std::string>> lists_;
};

json sequence_json(const SeeOptions& o, const Layer& layer, int64_t batch, const PagePart& part,
                   std::map<std::pair<int64_t, int64_t>, json>& cells, TokenLists& lists) {
  const Sequence s = sequence_of(layer, batch);
  const Tokens tokens = find_tokens(o.tokens, batch, s.queries, s.keys);
  json entry = {{"batch", batch},
                {"queries", s.queries},
                {"keys", s.keys},
                {"query_tokens", lists.number(tokens.queries)},
                {"key_tokens", lists.number(tokens.keys)}};
  const std::vector<HeadFacts> facts = layer.facts(batch, 1);
  for (int64_t h : part.heads) {
    json head = json_of(facts[static_cast<size_t>(h)], layer, h, tokens);
    head.erase("layer");
    head["cells"] = std::move(cells[{batch, h}]);
    entry["heads"].push_back(std::move(head));
  }
  return entry;
}

json layer_json(const SeeOptions& o, const Layer& layer, const PagePart& part, CellSource chosen, Blobs& blobs,
                TokenLists& lists) {
  auto cells = collect_cells(layer, part, chosen, blobs);
  json result = {{"number", layer.number() < 0 ? json() : json(layer.number())}};
  result["formula"] = layer.problem() ? json(layer.problem()->attention.text()) : json();
  for (int64_t b : part.batches) result["sequences"].push_back(sequence_json(o, layer, b, part, cells, lists));
  return result;
}

/// What the page begins with, as its address says it: of a query the strongest key is pinned.
std::string first_view(const SeeOptions& o, const Layer& layer) {
  std::string view = o.scale == Scale::kLog ? "scale=log" : o.scale == Scale::kLift ? "scale=lift" : "";
  if (o.row < 0) return view;
  const RowKeys row = keys_of_row(layer, o.batch, std::max(0, o.head), o.row);
  return view + fmt::format("&batch={}&pin={},{}", o.batch, o.row, row.keys.empty() ? 0 : row.keys.front().key);
}

/// 256 colours as hexadecimal digits.
std::string colors(Rgb (*entry)(int)) {
  std::string text;
  for (int n = 0; n < kMapSize; ++n) {
    const Rgb c = entry(n);
    text += fmt::format("{:02x}{:02x}{:02x}", c.r, c.g, c.b);
  }
  return text;
}

/// Puts each value where its {{NAME}} stands. Values are not looked into again.
std::string filled(std::string_view page, const std::map<std::string, std::string>& values) {
  std::string text;
  while (!page.empty()) {
    const size_t open = std::min(page.find("{{"), page.size());
    text += page.substr(0, open);
    page.remove_prefix(open);
    if (page.empty()) break;
    const size_t close = page.find("}}");
    text += values.at(std::string(page.substr(2, close - 2)));
    page.remove_prefix(close + 2);
  }
  return text;
}

std::string html_escaped(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

}  // namespace

std::string page_of(const SeeOptions& o, const std::vector<Layer>& layers) {
  std::vector<PagePart> parts;
  for (const Layer& layer : layers) {
    if (layer.batches() == 0 || layer.heads() == 0)
      throw OptionError(
          fmt::format("there is nothing to draw: {} batch entries with {} heads", layer.batches(), layer.heads()));
    parts.push_back(part_of(o, layers, layer));
  }
  double size = 0;
  std::vector<CellSource> chosen = choose_for_all(layers, parts, kMostHalves, size);
  if (size > kLargestPage) chosen = choose_for_all(layers, parts, 0, size);
  if (size > kLargestPage) refuse(o, layers, parts, size);

  Blobs blobs;
  TokenLists lists;
  json facts = {{"file", safe_line(o.title)}, {"made_by", fmt::format("qkv {}", qkv::version())}, {"tile", kTileSide}};
  for (size_t n = 0; n < layers.size(); ++n)
    facts["layers"].push_back(layer_json(o, layers[n], parts[n], chosen[n], blobs, lists));
  facts["view"] = first_view(o, layers.front());
  facts["tokens"] = lists.lists();
  facts["colors"] = {{"sequential", colors([](int n) { return cividis(n / 255.0); })},
                     {"diverging", colors([](int n) { return diverging(n / 127.5 - 1); })}};
  facts["blob_ends"] = blobs.ends();
  const std::string json_text = facts.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::string text =
      filled(page::kHtml,
             {{"TITLE", html_escaped(safe_line(o.title))}, {"FACTS", script_safe(json_text)}, {"BYTES", blobs.text()}});
  if (static_cast<double>(text.size()) > kLargestPage) refuse(o, layers, parts, static_cast<double>(text.size()));
  return text;
}

void write_page(const std::string& path, const std::string& page, const std::stop_token& stop) {
  io::OutputFile file("--html", path);
  file.write(std::as_bytes(std::span(page)), stop);
  file.commit();
}

}  // namespace qkv::cli
