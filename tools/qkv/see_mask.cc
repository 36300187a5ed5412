#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "qkv/colormap.h"
#include "qkv/error.h"
#include "qkv/grid.h"
#include "qkv/masks.h"
#include "qkv/see.h"

namespace qkv::cli {

namespace {

constexpr int64_t kMostPairs = int64_t{1} << 26;
constexpr uint8_t kVisible = 0, kNoKey = 1, kFirstRule = 2;
constexpr uint8_t kMixed = 255;  // a cell of several pairs, some visible
constexpr std::string_view kLetters = "#-abcdefghijklmnopqrstuvwxyz";

/// Dark, far from each other, also for colour-blind eyes: after Okabe and Ito 2008.
constexpr Rgb kRuleColors[] = {{0, 114, 178},   {213, 94, 0},   {0, 158, 115},
                               {204, 121, 167}, {86, 180, 233}, {230, 159, 0}};
constexpr Rgb kVisibleColor{240, 228, 66}, kMixedColor{150, 143, 60};

char letter_of(uint8_t rule) { return rule == kMixed ? '+' : kLetters[std::min<size_t>(rule, kLetters.size() - 1)]; }

Rgb color_of(uint8_t rule) {
  if (rule == kVisible) return kVisibleColor;
  if (rule == kMixed) return kMixedColor;
  if (rule == kNoKey) return kHidden;
  return kRuleColors[static_cast<size_t>(rule - kFirstRule) % std::size(kRuleColors)];
}

/// What each number of hiding_rule_of means.
std::vector<std::string> rule_names(const Attention& a) {
  std::vector<std::string> names = {"visible", "no such key (past its length)"};
  for (const auto& pattern : a.patterns()) names.push_back(pattern->about().text);
  for (const auto& score : a.scores()) {
    if (score->hides()) names.push_back(score->about().text + " (-inf)");
  }
  return names;
}

/// The rules of a block of pairs as one: the one that hides most of them, kMixed where some are visible and some not.
uint8_t joined(View<const uint8_t> rule, const SeeOptions& o, const GridPlan& plan, int64_t row, int64_t column) {
  std::array<int64_t, 256> count{};
  const int64_t rows = std::min(rule.shape[2], (row + 1) * plan.row_factor),
                columns = std::min(rule.shape[3], (column + 1) * plan.column_factor);
  for (int64_t i = row * plan.row_factor; i < rows; ++i) {
    for (int64_t j = column * plan.column_factor; j < columns; ++j) ++count[rule(o.batch, o.head, i, j)];
  }
  const auto most = std::max_element(count.begin() + 1, count.end());
  if (*most == 0) return kVisible;
  return count[kVisible] > 0 ? kMixed : static_cast<uint8_t>(most - count.begin());
}

std::string legend(View<const uint8_t> rule, const SeeOptions& o, const Attention& a, const Screen& screen) {
  std::array<int64_t, 256> count{};
  for (int64_t i = 0; i < rule.shape[2]; ++i) {
    for (int64_t j = 0; j < rule.shape[3]; ++j) ++count[rule(o.batch, o.head, i, j)];
  }
  std::string text;
  const std::vector<std::string> names = rule_names(a);
  for (size_t r = 0; r < count.size(); ++r) {
    if (count[r] == 0) continue;
    const auto id = static_cast<uint8_t>(r);
    const std::string sample = screen.colors == ColorDepth::kNone
                                   ? std::string(1, letter_of(id))
                                   : background(color_of(id), screen.colors) + "  " + plain(screen.colors);
    text += fmt::format("  {} {}{}: {} pairs\n", sample, r >= kFirstRule ? "hidden by " : "",
                        r < names.size() ? names[r] : "a rule", count[r]);
  }
  return text;
}

}  // namespace

std::string mask_text(const SeeOptions& o, const Layer& layer, const Tokens& tokens, const Screen& screen) {
  const Problem* p = layer.problem();
  if (p == nullptr)
    throw OptionError("--mask: the file has weights only; the mask is drawn from q, k and the options that hide keys");
  if (layer.batches() * layer.heads() * layer.queries() * layer.keys() > kMostPairs) {
    throw OptionError(fmt::format("--mask: {} queries and {} keys of {} heads are too many to draw; take a part",
                                  layer.queries(), layer.keys(), layer.heads()));
  }
  Array rules(DType::kUInt8, {layer.batches(), layer.heads(), layer.queries(), layer.keys()});
  const View<uint8_t> rule = rules.view().as<uint8_t>();
  hiding_rule_of(p->attention, p->inputs, rule);
  const AxisLabels labels{tokens.queries, tokens.keys};
  const GridPlan plan = plan_grid(layer.queries(), layer.keys(), labels, screen);
  const Paint paint = [&](int64_t r, int64_t c) {
    const uint8_t id = joined(rule, o, plan, r, c);
    return CellLook{color_of(id), std::string(1, letter_of(id)), letter_of(id)};
  };
  return fmt::format("{}who may see whom{}: {}\n\n", bold(screen.colors), plain(screen.colors), p->attention.text()) +
         render_grid(plan, labels, paint, screen) + "\n" + legend(rule, o, p->attention, screen);
}

}  // namespace qkv::cli
