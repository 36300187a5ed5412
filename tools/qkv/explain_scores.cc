// From dot products to masked scores.
#include <numeric>

#include "qkv/explain_page.h"
#include "qkv/rules.h"

namespace qkv::cli {

namespace {

double length_of(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

}  // namespace

Page::Kind Page::kind_of(const std::string& modifier) {
  if (modifier.starts_with("softcap:")) return Kind::kSoftCap;
  if (modifier == "alibi") return Kind::kAlibi;
  return modifier == "bias" ? Kind::kBias : Kind::kOther;
}

void Page::dot_products() {
  step("Dot products",
       fmt::format("q {} k = sum over d of q[d] {} k[d]: how alike the query and each key are", dot_, dot_));
  if (static_cast<size_t>(e_.dim) <= kMostTerms) {
    Table table({{"key", Side::kLeft, Narrow::kCut},
                 {"k", Side::kLeft, Narrow::kDrop},
                 {"", Side::kRight, Narrow::kDrop},
                 {fmt::format("q {} k", dot_), Side::kRight}});
    for (size_t n : shown_) {
      const KeySteps& k = e_.keys[n];
      table.add(
          {key_name(k), vector_text(k.key_vector), dot_text(e_.query_vector, k.key_vector) + "  =", number(k.dot)});
    }
    if (!rest_.empty()) table.add({the_rest(), "", "", range([](const KeySteps& k) { return k.dot; })});
    return add(table);
  }
  const double length = length_of(e_.query_vector);
  line(fmt::format("   = |q| {} |k| {} cos(angle), with |q| = {}", dot_, dot_, number(length)));
  Table table({{"key", Side::kLeft, Narrow::kCut},
               {"k", Side::kLeft, Narrow::kFirst},
               {"|k|", Side::kRight, Narrow::kDrop},
               {"cos", Side::kRight, Narrow::kDrop},
               {fmt::format("q {} k", dot_), Side::kRight}});
  for (size_t n : shown_) {
    const KeySteps& k = e_.keys[n];
    const double own = length_of(k.key_vector);
    table.add({key_name(k), vector_text(k.key_vector), number(own),
               length * own > 0 ? fmt::format("{:.4f}", k.dot / (length * own)) : "", number(k.dot)});
  }
  if (!rest_.empty()) table.add({the_rest(), "", "", "", range([](const KeySteps& k) { return k.dot; })});
  add(table);
}

void Page::scaled() {
  const bool usual = !problem_.attention.scale().has_value();
  step("Scaled", usual ? fmt::format("s = q {} k / sqrt(D), 1 / sqrt({}) = {}", dot_, e_.dim, number(e_.scale))
                       : fmt::format("s = scale {} q {} k, scale = {}", dot_, dot_, number(e_.scale)));
  Table table({{"key", Side::kLeft, Narrow::kCut}, {"", Side::kRight, Narrow::kDrop}, {"s", Side::kRight}});
  for (size_t n : shown_)
    table.add({key_name(e_.keys[n]), times(e_.scale, e_.keys[n].dot) + "  =", number(e_.keys[n].scaled)});
  if (!rest_.empty()) table.add({the_rest(), "", range([](const KeySteps& k) { return k.scaled; })});
  add(table);
}

void Page::modified(size_t m) {
  const std::string& text = e_.modifiers[m];
  const Kind kind = kind_of(text);
  const std::string cap = kind == Kind::kSoftCap ? text.substr(text.find(':') + 1) : "";
  const char* names[] = {"Soft-cap", "ALiBi", "Bias", "Modifier"};
  const std::string formulas[] = {
      fmt::format("s = {} tanh(s / {}): no score is past {}", cap, cap, cap),
      fmt::format("s = s - slope {} distance, slope = {}: what is far counts less", dot_, number(e_.alibi_slope)),
      "s = s + bias of this pair", text};
  step(names[static_cast<int>(kind)], formulas[static_cast<int>(kind)]);
  Table table({{"key", Side::kLeft, Narrow::kCut}, {"", Side::kRight, Narrow::kDrop}, {"s", Side::kRight}});
  for (size_t n : shown_) {
    const KeySteps& k = e_.keys[n];
    const double s = k.before(m), change = k.modified[m] - s;
    std::string sum = number(s);
    if (kind == Kind::kSoftCap) sum = fmt::format("{} tanh({} / {})", cap, number(s), cap);
    if (kind == Kind::kAlibi) sum += fmt::format(" - {} {} {}", number(e_.alibi_slope), dot_, k.distance);
    if (kind == Kind::kBias) sum += fmt::format(" {} {}", change < 0 ? "-" : "+", number(std::abs(change)));
    table.add({key_name(k), sum + "  =", number(k.modified[m])});
  }
  if (!rest_.empty()) table.add({the_rest(), "", range([m](const KeySteps& k) { return k.modified[m]; })});
  add(table);
}

void Page::masks() {
  const bool may_hide = e_.rules.size() > kFirstRule || e_.missing_keys > 0;
  step("Masks", may_hide ? "a hidden key takes no part from here on" : "nothing hides a key");
  if (!may_hide) return;
  if (e_.rules.size() > kFirstRule) {
    Table table({{"key", Side::kLeft, Narrow::kCut}, {"s", Side::kRight}, {"", Side::kLeft, Narrow::kCut}});
    for (size_t n : shown_) {
      const KeySteps& k = e_.keys[n];
      table.add({key_name(k), number(k.score()),
                 k.rule == kVisible ? "visible" : "hidden by " + safe_line(e_.rules[k.rule])});
    }
    add(table);
  }
  for (size_t r = kVisible; r < e_.rules.size(); ++r) {
    if (r == kNoKey || rest_.empty()) continue;
    const auto count = std::count_if(rest_.begin(), rest_.end(), [&](size_t n) { return e_.keys[n].rule == r; });
    if (count > 0)
      line(fmt::format("   {} of the others {}{}", count, r == kVisible ? "are " : "are hidden by ",
                       safe_line(e_.rules[r])));
  }
  if (e_.missing_keys > 0)
    line(fmt::format("   {} past the length: no such key",
                     e_.missing_keys == 1 ? "1 column is" : fmt::format("{} columns are", e_.missing_keys)));
}

}  // namespace qkv::cli
