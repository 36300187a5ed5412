// From masked scores to the output.
#include "qkv/explain_page.h"
#include "qkv/rules.h"

namespace qkv::cli {

void Page::empty_row() {
  step("Nothing is left", "this query sees no key");
  line("   The weights are 0, the output is 0 and the log-sum-exp is -inf.");
  if (!e_.out.empty()) line(fmt::format("   out = {}", vector_text(e_.out)));
}

void Page::exponentials() {
  std::string whose;
  for (const KeySteps& k : e_.keys) {
    if (k.rule == kVisible && k.score() == e_.maximum && whose.empty())
      whose = (tokens_.keys.empty() ? ", of key " : ", of ") + key_name(k);
  }
  step("Maximum", fmt::format("m = {}{}", number(e_.maximum), whose));
  step("Exponentials", "exp(s - m); taking m off changes no weight, and nothing overflows");
  Table table({{"key", Side::kLeft, Narrow::kCut},
               {"s", Side::kRight, Narrow::kDrop},
               {"exp(s)", Side::kRight, Narrow::kFirst},
               {"s - m", Side::kRight, Narrow::kDrop},
               {"exp(s - m)", Side::kRight}});
  double raw = 0, raw_rest = 0;
  const auto row = [&](const std::string& name, double s, double e) {
    raw += std::exp(s);
    table.add({name, number(s), number(std::exp(s)), number(s - e_.maximum), number(e)});
  };
  for (size_t n : shown_) {
    const KeySteps& k = e_.keys[n];
    if (k.rule == kVisible) row(key_name(k), k.score(), k.exponential);
    else table.add({key_name(k), "hidden", "0", "", "0"});
  }
  if (!rest_.empty()) {
    raw_rest = sum_of_rest([](const KeySteps& k) { return k.rule == kVisible ? std::exp(k.score()) : 0; });
    table.add(
        {the_rest(), "", number(raw_rest), "", number(sum_of_rest([](const KeySteps& k) { return k.exponential; }))});
  }
  for (const Keyless& k : e_.keyless) row(k.name, k.score, k.exponential);
  table.add({"sum", "", number(raw + raw_rest), "", number(e_.sum)});
  add(table);
  line(fmt::format("   log-sum-exp = m + ln(sum) = {} + ln({}) = {}", number(e_.maximum), number(e_.sum),
                   number(e_.lse)));
}

void Page::weights() {
  step("Weights", "w = exp(s - m) / sum");
  Table table({{"key", Side::kLeft, Narrow::kCut}, {"", Side::kRight, Narrow::kDrop}, {"w", Side::kRight}});
  double sum = 0;
  const auto row = [&](const std::string& name, double e, double w) {
    table.add({name, fmt::format("{} / {}  =", number(e), number(e_.sum)), number(w)});
    sum += w;
  };
  for (size_t n : shown_) row(key_name(e_.keys[n]), e_.keys[n].exponential, e_.keys[n].weight);
  if (!rest_.empty())
    row(the_rest(), sum_of_rest([](const KeySteps& k) { return k.exponential; }),
        sum_of_rest([](const KeySteps& k) { return k.weight; }));
  for (const Keyless& k : e_.keyless) row(k.name, k.exponential, k.exponential / e_.sum);
  table.add({"sum", "", number(sum)});
  add(table);
  if (!e_.keyless.empty()) line("   What has no key has no value: its weight is lost to the output.");
}

void Page::weighted_values() {
  step("Weighted values", fmt::format("out = sum of w {} v", dot_));
  Table table({{"key", Side::kLeft, Narrow::kCut},
               {"w", Side::kRight, Narrow::kDrop},
               {"v", Side::kLeft, Narrow::kFirst},
               {fmt::format("w {} v", dot_), Side::kLeft, Narrow::kCut}});
  const auto weighted = [](const KeySteps& k) { return cli::times(k.weight, k.value); };
  for (size_t n : shown_) {
    const KeySteps& k = e_.keys[n];
    table.add({key_name(k), number(k.weight), vector_text(k.value), vector_text(weighted(k))});
  }
  if (!rest_.empty()) {
    std::vector<double> all(e_.out.size());
    for (size_t n : rest_) {
      const std::vector<double> wv = weighted(e_.keys[n]);
      for (size_t d = 0; d < all.size(); ++d) all[d] += wv[d];
    }
    table.add({the_rest(), number(sum_of_rest([](const KeySteps& k) { return k.weight; })), "", vector_text(all)});
  }
  table.add({"out", "", "", vector_text(e_.out)});
  add(table);
}

}  // namespace qkv::cli
