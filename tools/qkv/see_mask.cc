#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "qkv/colormap.h"
#include "qkv/error.h"
#include "qkv/fold.h"
#include "qkv/grid.h"
#include "qkv/masks.h"
#include "qkv/rules.h"
#include "qkv/see.h"
#include "qkv/see_json.h"

namespace qkv::cli {

namespace {

constexpr double kMostPairs = 1 << 26;
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

std::string legend(const std::vector<RuleCount>& counts, const GridPlan& plan, const Screen& screen) {
  std::string text;
  const auto sample = [&](uint8_t rule) {
    return screen.colors == ColorDepth::kNone ? std::string(1, letter_of(rule))
                                              : background(color_of(rule), screen.colors) + "  " + plain(screen.colors);
  };
  for (const RuleCount& c : counts) text += fmt::format("  {} {}: {} pairs\n", sample(c.rule), c.name, c.pairs);
  if (plan.row_factor * plan.column_factor > 1)
    text += fmt::format("  {} some visible, some not; each cell is {} x {} pairs\n", sample(kMixed), plan.row_factor,
                        plan.column_factor);
  return text;
}

/// The rule of every pair of every head. Throws OptionError where there is none, or too many.
Array rules_of(const Layer& layer) {
  if (layer.problem() == nullptr) {
    throw OptionError("--mask: the file has weights only; the mask is drawn from q, k and the options that hide keys");
  }
  if (layer.problem()->sizes.pairs() > kMostPairs) {
    throw OptionError(fmt::format("--mask: {} queries and {} keys of {} heads are too many to draw; take a part",
                                  layer.queries(), layer.keys(), layer.heads()));
  }
  Array rules(DType::kUInt8, {layer.batches(), layer.heads(), layer.queries(), layer.keys()});
  hiding_rule_of(layer.problem()->attention, layer.problem()->inputs, rules.view().as<uint8_t>());
  return rules;
}

std::vector<RuleCount> count(View<const uint8_t> rule, const SeeOptions& o, const Attention& a) {
  std::array<int64_t, 256> pairs{};
  for (int64_t i = 0; i < rule.shape[2]; ++i) {
    for (int64_t j = 0; j < rule.shape[3]; ++j) ++pairs[rule(o.batch, o.head, i, j)];
  }
  const std::vector<std::string> names = rule_names(a);
  std::vector<RuleCount> counts;
  for (size_t r = 0; r < names.size(); ++r) {
    if (pairs[r] == 0) continue;
    counts.push_back({static_cast<uint8_t>(r), (r >= kFirstRule ? "hidden by " : "") + names[r], pairs[r]});
  }
  return counts;
}

}  // namespace

std::string mask_text(const SeeOptions& o, const Layer& layer, const Tokens& tokens, const Screen& screen) {
  const Array rules = rules_of(layer);
  const View<const uint8_t> rule = rules.view().as<const uint8_t>();
  const Attention& attention = layer.problem()->attention;
  const AxisLabels labels{tokens.queries, tokens.keys};
  const GridPlan plan = plan_grid(layer.queries(), layer.keys(), labels, screen);
  const Paint paint = [&](int64_t r, int64_t c) {
    const uint8_t id = joined(rule, o, plan, r, c);
    return CellLook{color_of(id), std::string(1, letter_of(id)), letter_of(id)};
  };
  return fold(
      fmt::format("{}who may see whom{}: {}\n\n{}\n{}", bold(screen.colors), plain(screen.colors), attention.text(),
                  render_grid(plan, labels, paint, screen), legend(count(rule, o, attention), plan, screen)),
      screen);
}

std::vector<RuleCount> count_rules(const SeeOptions& o, const Layer& layer) {
  const Array rules = rules_of(layer);
  return count(rules.view().as<const uint8_t>(), o, layer.problem()->attention);
}

std::string mask_json(const SeeOptions& o, const Layer& layer) {
  const Array rules = rules_of(layer);
  const Attention& attention = layer.problem()->attention;
  const std::vector<std::string> names = rule_names(attention);
  nlohmann::json json = {{"attention", attention.text()}, {"head", o.head}, {"batch", o.batch}};
  for (const RuleCount& c : count(rules.view().as<const uint8_t>(), o, attention)) {
    json["rules"].push_back({{"name", names[c.rule]}, {"pairs", c.pairs}, {"hides", c.rule != kVisible}});
  }
  return text_of(json);
}

}  // namespace qkv::cli
