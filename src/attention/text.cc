// An attention as a value: its setters, equality, and its text.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <typeinfo>

#include "core/format.h"
#include "qkv/attention.h"

namespace qkv {
namespace {

/// Formulas that say the same when said twice. (Windows may meet, and modifiers run as often as they are written.)
constexpr std::array<std::string_view, 4> kOnce{Causal::kName, Documents::kName, KeepMask::kName, IgnoreMask::kName};

template <class Pass> bool same(const Pass& a, const Pass& b) {
  if (&a == &b) return true;
  return !a.about().text.empty() && a.about().text == b.about().text && a.about().tensors == b.about().tensors &&
         typeid(a) == typeid(b);
}

template <class Passes> bool all_same(const Passes& a, const Passes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return same(*x, *y); });
}

template <class N> std::string shortest_text(N value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

void append(std::string& stage, std::string_view word) {
  if (!stage.empty()) stage += ' ';
  stage += word;
}

template <class Passes> void append_all(std::string& stage, const Passes& passes) {
  for (const auto& pass : passes) {
    const std::string& text = pass->about().text;
    append(stage, text.empty() ? "(unnamed)" : std::string_view(text));  // no word that parse() takes
  }
}

}  // namespace

Attention& Attention::scale(double scale) {
  if (!std::isfinite(scale)) {
    option_error("Attention::scale: scale is {}; expected a finite number; leave it out for 1 / sqrt(head size)",
                 scale);
  }
  scale_ = scale;
  return *this;
}

Attention& Attention::dropout(double p) {
  if (!(p >= 0 && p <= 1))
    option_error("Attention::dropout: p is {}; expected 0 to 1, the share of weights that is dropped", p);
  dropout_ = p;
  return *this;
}

Attention& Attention::add(std::shared_ptr<const passes::Pattern> pattern) {
  if (!pattern) option_error("Attention::visible: the pattern is null; make one with adapt_pattern()");
  const std::string& text = pattern->about().text;
  if (std::ranges::find(kOnce, text) != kOnce.end() &&
      std::ranges::any_of(patterns_, [&](const auto& p) { return same(*p, *pattern); })) {
    option_error("Attention::visible: \"{}\" is in this attention already; say it once", text);
  }
  patterns_.push_back(std::move(pattern));
  return *this;
}

Attention& Attention::add(std::shared_ptr<const passes::Score> modifier) {
  if (!modifier) option_error("Attention::score: the modifier is null; make one with adapt_score()");
  scores_.push_back(std::move(modifier));
  return *this;
}

bool operator==(const Attention& a, const Attention& b) {
  return all_same(a.patterns_, b.patterns_) && all_same(a.scores_, b.scores_) && a.scale_ == b.scale_ &&
         a.dropout_ == b.dropout_ && a.align_ == b.align_ && a.heads_ == b.heads_ && a.sink_ == b.sink_ &&
         a.zero_key_ == b.zero_key_;
}

Attention::Attention() = default;
Attention::~Attention() = default;
Attention::Attention(const Attention&) = default;
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(const Attention&) = default;
Attention& Attention::operator=(Attention&&) noexcept = default;

Vocabulary& Vocabulary::add(Word word) {
  words_.push_back(word);
  return *this;
}

void detail::refuse(const std::string& policy, const char* fault) { option_error("{}: {}", policy, fault); }

std::string detail::number_text(int64_t value) { return shortest_text(value); }
std::string detail::number_text(float value) { return shortest_text(value); }
std::string detail::number_text(double value) { return shortest_text(value); }

std::string Attention::text() const {
  std::string visible, score, weights = sink_ ? "sink_softmax" : "softmax";
  append_all(visible, patterns_);
  if (align_ == Align::kTopLeft) append(visible, "align:top_left");
  if (align_ == Align::kBottomRight) append(visible, "align:bottom_right");
  if (heads_ == HeadMapping::kTiled) append(visible, "heads:tiled");
  append_all(score, scores_);
  if (scale_) append(score, "scale:" + detail::number_text(*scale_));
  if (zero_key_) append(weights, "zero_key");
  if (dropout_ != 0) append(weights, "dropout:" + detail::number_text(dropout_));

  std::string text;
  for (const std::string& stage : {visible, score, weights}) {
    if (!stage.empty()) text += (text.empty() ? "" : " | ") + stage;
  }
  return text;
}

}  // namespace qkv
