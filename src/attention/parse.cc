// Attention::parse. The grammar: text = stage {" | " stage}, stage = word {" " word}, word = name [":" value {"," value}].
#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/built_in_policies.h"
#include "core/format.h"
#include "core/nearest.h"
#include "qkv/attention.h"

namespace qkv {
namespace {

enum class Stage : uint8_t { kVisible, kScore, kWeights };
constexpr std::array<std::string_view, 3> kStageNames{"visible", "score", "weights"};

/// What may be said once only, whatever the words for it are.
enum class Slot : uint8_t { kAlign, kHeads, kScale, kWeights, kZeroKey, kDropout, kCount };

struct Setting {
  std::string_view name;
  Stage stage;
  Slot slot;
  void (*apply)(Attention&, std::string_view arguments);
};

template <class T> T only_argument(std::string_view arguments) {
  T value{};
  detail::take_argument(arguments, value);
  detail::expect_no_argument(arguments);
  return value;
}

void set_align(Attention& a, std::string_view arguments) {
  if (arguments == "top_left") a.align(Align::kTopLeft);
  else if (arguments == "bottom_right") a.align(Align::kBottomRight);
  else option_error("expected align:top_left or align:bottom_right");
}

void set_heads(Attention& a, std::string_view arguments) {
  if (arguments == "grouped") a.heads(HeadMapping::kGrouped);
  else if (arguments == "tiled") a.heads(HeadMapping::kTiled);
  else option_error("expected heads:grouped or heads:tiled");
}

constexpr Setting kSettings[] = {
    {"align", Stage::kVisible, Slot::kAlign, set_align},
    {"heads", Stage::kVisible, Slot::kHeads, set_heads},
    {"scale", Stage::kScore, Slot::kScale, [](Attention& a, std::string_view s) { a.scale(only_argument<double>(s)); }},
    {"softmax", Stage::kWeights, Slot::kWeights,
     [](Attention& a, std::string_view s) { detail::expect_no_argument(s), a.weights(Softmax{}); }},
    {"sink_softmax", Stage::kWeights, Slot::kWeights,
     [](Attention& a, std::string_view s) { detail::expect_no_argument(s), a.weights(SinkSoftmax{}); }},
    {"zero_key", Stage::kWeights, Slot::kZeroKey,
     [](Attention& a, std::string_view s) { detail::expect_no_argument(s), a.zero_key(); }},
    {"dropout", Stage::kWeights, Slot::kDropout,
     [](Attention& a, std::string_view s) { a.dropout(only_argument<double>(s)); }},
};

/// For messages: in quotes, bytes that are not plain text as \xNN, cut where it is long.
std::string quoted(std::string_view text) {
  constexpr size_t kLongest = 40;
  std::string out = "\"";
  for (const char c : text.substr(0, kLongest)) {
    if (c >= ' ' && c <= '~') out += c;
    else out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kLongest ? "...\"" : "\"");
}

/// A message without what begins it, which is the word that was read, or the setter it stands for: "Attention::scale: ...".
std::string_view without_prefix(std::string_view message) {
  const size_t end = message.find(": ");
  return end < message.find(' ') ? message.substr(end + 2) : message;
}

class Parser {
 public:
  Parser(std::string_view text, const Vocabulary& own) : text_(text), own_(own) { check_vocabulary(); }

  Attention run() {
    while (true) {
      read_word();
      if (at_ == text_.size()) return std::move(attention_);
      read_separator();
    }
  }

 private:
  /// What the table and the vocabularies say about a name.
  struct Found {
    Stage stage;
    std::optional<Slot> slot;
    void (*apply)(Attention&, std::string_view);
  };

  template <class... A> [[noreturn]] void fail(size_t place, fmt::format_string<A...> text, A&&... values) const {
    option_error("Attention::parse: column {}: {}", place + 1, fmt::format(text, std::forward<A>(values)...));
  }

  std::vector<std::string_view> names() const {
    std::vector<std::string_view> all = built_in_words();
    for (const auto& word : own_.words()) all.push_back(word.name);
    return all;
  }

  void check_vocabulary() const {
    if (own_.words().empty()) return;
    std::vector<std::string_view> all = names();
    std::ranges::sort(all);
    if (const auto twice = std::ranges::adjacent_find(all); twice != all.end()) {
      option_error(
          "Attention::parse: the vocabulary has the word {}, which exists already; give that policy another kName",
          quoted(*twice));
    }
  }

  std::optional<Found> find(std::string_view name) const {
    for (const auto& s : kSettings) {
      if (s.name == name) return Found{s.stage, s.slot, s.apply};
    }
    for (const auto words : {built_in_policies().words(), own_.words()}) {
      for (const auto& w : words) {
        const Stage stage = w.stage == Vocabulary::Stage::kVisible ? Stage::kVisible : Stage::kScore;
        if (w.name == name) return Found{stage, std::nullopt, w.add};
      }
    }
    return std::nullopt;
  }

  [[noreturn]] void fail_unknown(std::string_view name) const {
    const std::vector<std::string_view> all = names();
    if (const auto meant = nearest_word(name, all))
      fail(at_, "unknown word {}; did you mean \"{}\"?", quoted(name), *meant);
    std::string list;
    for (const std::string_view word : all) list += (list.empty() ? "" : ", ") + std::string(word);
    fail(at_, "unknown word {}; known are {}; a policy of your own comes through a Vocabulary", quoted(name), list);
  }

  void read_word() {
    const size_t end = std::min(text_.find_first_of(" |", at_), text_.size());
    if (end == at_) fail_empty();
    const std::string_view word = text_.substr(at_, end - at_);
    const size_t colon = std::min(word.find(':'), word.size());
    const std::string_view name = word.substr(0, colon);
    const auto found = find(name);
    if (!found) fail_unknown(name);
    if (colon + 1 == word.size())
      fail(at_, "{} has no value after its colon; add one or leave the colon out", quoted(word));
    check_stage(word, found->stage);
    if (found->slot) check_slot(word, *found->slot);
    try {
      found->apply(attention_, colon == word.size() ? std::string_view{} : word.substr(colon + 1));
    } catch (const OptionError& e) {
      fail(at_, "{}: {}", quoted(word), without_prefix(e.what()));
    }
    at_ = end;
  }

  [[noreturn]] void fail_empty() const {
    if (text_.empty()) fail(at_, "the text is empty; plain attention is \"softmax\"");
    if (at_ == text_.size()) fail(at_, "the text ends where a word is expected; drop what comes after the last word");
    if (text_[at_] == '|') fail(at_, "this stage is empty; leave out an empty stage with its \"|\"");
    fail(at_, "a space where a word is expected; put one space between words");
  }

  void check_stage(std::string_view word, Stage stage) {
    if (!stage_known_ && started_ && stage <= stage_) {
      fail(at_, "{} belongs to the {} stage, but the {} stage stands before it; the order is visible | score | weights",
           quoted(word), kStageNames[size_t(stage)], kStageNames[size_t(stage_)]);
    }
    if (stage_known_ && stage != stage_) {
      fail(
          at_,
          "{} belongs to the {} stage, but stands in the {} stage; put it there, the order is visible | score | weights",
          quoted(word), kStageNames[size_t(stage)], kStageNames[size_t(stage_)]);
    }
    stage_ = stage;
    stage_known_ = started_ = true;
  }

  void check_slot(std::string_view word, Slot slot) {
    std::string_view& before = said_[size_t(slot)];
    if (!before.empty()) fail(at_, "{} after {}; say it once", quoted(word), quoted(before));
    before = word;
  }

  void read_separator() {
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with(" | ")) {
      at_ += 3;
      stage_known_ = false;
    } else if (rest.starts_with(" |") || rest.starts_with("|")) {
      fail(at_, "stages are parted by \" | \", with one space on both sides, and a word follows");
    } else {
      at_ += 1;
    }
  }

  std::string_view text_;
  const Vocabulary& own_;
  Attention attention_;
  size_t at_ = 0;
  Stage stage_ = Stage::kVisible;
  bool started_ = false, stage_known_ = false;  // whether any word was read, and whether one of this stage
  std::array<std::string_view, size_t(Slot::kCount)> said_{};
};

/// Cuts the text up to the next comma off `rest`. What the caller adds: the word and its column.
std::string_view cut(std::string_view& rest) {
  if (rest.empty()) option_error("a number is missing; the word takes more of them");
  const size_t comma = rest.find(',');
  const std::string_view first = rest.substr(0, comma);
  rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  if (first.empty() || (comma != std::string_view::npos && rest.empty())) {
    option_error("no number beside a comma; write the numbers with one comma between two");
  }
  return first;
}

template <class N> void take(std::string_view& rest, N& value, const char* kind) {
  const std::string_view text = cut(rest);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) option_error("{} is out of range for {}", quoted(text), kind);
  if (error != std::errc{} || end != text.data() + text.size()) option_error("{} is not {}", quoted(text), kind);
}

}  // namespace

std::vector<std::string_view> built_in_words() {
  std::vector<std::string_view> all;
  for (const auto& word : built_in_policies().words()) all.push_back(word.name);
  for (const auto& setting : kSettings) all.push_back(setting.name);
  return all;
}

const Vocabulary& built_in_policies() {
  static const Vocabulary words = [] {
    Vocabulary v;
    v.pattern<Causal>().pattern<Window>().pattern<Documents>().pattern<KeepMask>().pattern<IgnoreMask>();
    v.modifier<SoftCap>().modifier<SoftCaps>().modifier<Scales>().modifier<Alibi>().modifier<Bias>();
    return v;
  }();
  return words;
}

namespace detail {

void take_argument(std::string_view& rest, int& value) { take(rest, value, "a whole number"); }
void take_argument(std::string_view& rest, float& value) { take(rest, value, "a number"); }
void take_argument(std::string_view& rest, double& value) { take(rest, value, "a number"); }

void expect_no_argument(std::string_view rest) {
  if (!rest.empty()) option_error("{} is left over; the word takes fewer values, or none", quoted(rest));
}

}  // namespace detail

Attention Attention::parse(std::string_view text) { return parse(text, Vocabulary{}); }

Attention Attention::parse(std::string_view text, const Vocabulary& own_words) { return Parser(text, own_words).run(); }

}  // namespace qkv
