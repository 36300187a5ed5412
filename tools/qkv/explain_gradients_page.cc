// From a loss back to q, k and v.
#include "qkv/explain_page.h"
#include "qkv/labels.h"
#include "qkv/rules.h"

namespace qkv::cli {

namespace {

void add_to(std::vector<double>& sum, const std::vector<double>& x) {
  for (size_t d = 0; d < sum.size(); ++d) sum[d] += x[d];
}

}  // namespace

void Page::gradients() {
  by_weights();
  common_part();
  by_scores();
  for (size_t m = e_.modifiers.size(); m-- > 0;) through(m);
  by_query();
  by_keys_and_values();
}

void Page::by_weights() {
  const QueryGradients& g = *e_.gradients;
  step("Back to the weights", fmt::format("dP = dout {} v: by how much the loss grows with each weight", dot_));
  line(fmt::format("   dout = {}: by how much it grows with each number of out", vector_text(g.dout)));
  if (g.dlse) line(fmt::format("   dlse = {}: and with the log-sum-exp", number(*g.dlse)));
  const bool written_out = g.dout.size() <= kMostTerms;
  Table table({{"key", Side::kLeft, Narrow::kCut},
               {"v", Side::kLeft, Narrow::kFirst},
               {"", Side::kRight, Narrow::kDrop},
               {"dP", Side::kRight}});
  for (size_t n : shown_) {
    const KeySteps& k = e_.keys[n];
    if (k.rule != kVisible) table.add({key_name(k), "hidden", "", ""});
    else
      table.add({key_name(k), vector_text(k.value), written_out ? dot_text(g.dout, k.value) + "  =" : "",
                 number(g.of[n].by_weight)});
  }
  if (!rest_.empty()) {
    double low = INFINITY, high = -INFINITY;
    for (size_t n : rest_) {
      if (e_.keys[n].rule != kVisible) continue;
      low = std::min(low, g.of[n].by_weight);
      high = std::max(high, g.of[n].by_weight);
    }
    table.add({the_rest(), "", "", low > high ? "hidden" : fmt::format("{} to {}", number(low), number(high))});
  }
  add(table);
}

void Page::common_part() {
  const QueryGradients& g = *e_.gradients;
  step("What all have in common", fmt::format("delta = dout {} out{}, the mean of dP by the weights{}", dot_,
                                              g.dlse ? " - dlse" : "", g.dlse ? ", less dlse" : ""));
  std::string terms;
  if (g.dout.size() <= kMostTerms) terms = dot_text(g.dout, e_.out) + (g.dlse ? " - " + factor(*g.dlse) : "") + " = ";
  line(fmt::format("   delta = {}{}", terms, number(g.delta)));
}

void Page::by_scores() {
  const QueryGradients& g = *e_.gradients;
  step("Back to the scores",
       fmt::format("dS = w {} (dP - delta): a weight grows at the cost of the others, so only a difference counts",
                   dot_));
  Table table({{"key", Side::kLeft, Narrow::kCut}, {"", Side::kRight, Narrow::kDrop}, {"dS", Side::kRight}});
  double sum = 0, size = 0;
  const auto row = [&](const std::string& name, double w, double by_weight, double by_score) {
    table.add({name, fmt::format("{} {} ({} - {})  =", number(w), dot_, number(by_weight), factor(g.delta)),
               number(by_score)});
    sum += by_score, size += std::abs(by_score);
  };
  for (size_t n : shown_) {
    const KeySteps& k = e_.keys[n];
    if (k.rule == kVisible) row(key_name(k), k.weight, g.of[n].by_weight, g.of[n].by_score.back());
    else table.add({key_name(k), "hidden", "0"});
  }
  if (!rest_.empty()) {
    const double rest = sum_of_rest_gradients([](const KeyGradients& k) { return k.by_score.back(); });
    table.add({the_rest(), "", number(rest)});
    sum += rest, size += std::abs(rest);
  }
  for (size_t n = 0; n < e_.keyless.size(); ++n)
    row(e_.keyless[n].name, e_.sum == 0 ? 0 : e_.keyless[n].exponential / e_.sum, 0, g.keyless[n]);
  table.add({"sum", "", number(std::abs(sum) < 1e-12 * size ? 0 : sum)});  // nobody learns from the last bits
  add(table);
}

void Page::through(size_t m) {
  const QueryGradients& g = *e_.gradients;
  const std::string& text = e_.modifiers[m];
  const auto after = [m](const KeyGradients& k) { return k.by_score[m + 1]; };
  const auto before = [m](const KeyGradients& k) { return k.by_score[m]; };
  const Kind kind = kind_of(text);
  if (kind == Kind::kBias)
    return step("Back through the bias", "dS stays as it is; the bias of each pair gets the same");
  if (kind == Kind::kAlibi) {
    step("Back through ALiBi", fmt::format("dS stays as it is; the slope gets minus the sum of distance {} dS", dot_));
    double slope = 0;
    for (size_t n = 0; n < e_.keys.size(); ++n) slope -= e_.keys[n].distance * after(g.of[n]);
    return line(fmt::format("   by the slope = {}", number(slope)));
  }
  const std::string cap = text.substr(text.find(':') + 1);
  if (kind == Kind::kSoftCap)
    step("Back through the soft-cap",
         fmt::format("dS = dS {} (1 - tanh(s / {})^2): what is near the cap hardly moves", dot_, cap));
  else step("Back through the modifier", fmt::format("dS = dS {} the slope of {}", dot_, safe_line(text)));
  Table table({{"key", Side::kLeft, Narrow::kCut}, {"", Side::kRight, Narrow::kDrop}, {"dS", Side::kRight}});
  for (size_t n : shown_) {
    const KeySteps& k = e_.keys[n];
    std::string terms = number(after(g.of[n]));
    if (kind == Kind::kSoftCap) terms += fmt::format(" {} (1 - tanh({} / {})^2)", dot_, number(k.before(m)), cap);
    if (k.rule == kVisible) table.add({key_name(k), terms + "  =", number(before(g.of[n]))});
    else table.add({key_name(k), "hidden", "0"});
  }
  if (!rest_.empty()) table.add({the_rest(), "", number(sum_of_rest_gradients(before))});
  add(table);
}

void Page::by_query() {
  const QueryGradients& g = *e_.gradients;
  step("Back to the query",
       fmt::format("dq = scale {} sum of dS {} k: towards the keys that should get more", dot_, dot_));
  Table table({{"key", Side::kLeft, Narrow::kCut},
               {"dS", Side::kRight, Narrow::kDrop},
               {"k", Side::kLeft, Narrow::kFirst},
               {fmt::format("scale {} dS {} k", dot_, dot_), Side::kLeft, Narrow::kCut}});
  const auto term = [&](size_t n) { return cli::times(e_.scale * g.of[n].by_score.front(), e_.keys[n].key_vector); };
  for (size_t n : shown_)
    table.add({key_name(e_.keys[n]), number(g.of[n].by_score.front()), vector_text(e_.keys[n].key_vector),
               vector_text(term(n))});
  if (!rest_.empty()) {
    std::vector<double> all(g.query.size());
    for (size_t n : rest_) add_to(all, term(n));
    table.add({the_rest(), number(sum_of_rest_gradients([](const KeyGradients& k) { return k.by_score.front(); })), "",
               vector_text(all)});
  }
  table.add({"dq", "", "", vector_text(g.query)});
  add(table);
}

void Page::by_keys_and_values() {
  const QueryGradients& g = *e_.gradients;
  step("What this query adds to keys and values",
       fmt::format("dk = scale {} dS {} q, dv = w {} dout", dot_, dot_, dot_));
  Table table(
      {{"key", Side::kLeft, Narrow::kCut}, {"dk", Side::kLeft, Narrow::kCut}, {"dv", Side::kLeft, Narrow::kCut}});
  for (size_t n : shown_) table.add({key_name(e_.keys[n]), vector_text(g.of[n].key), vector_text(g.of[n].value)});
  if (!rest_.empty()) {
    std::vector<double> keys(g.query.size()), values(g.dout.size());
    for (size_t n : rest_) add_to(keys, g.of[n].key), add_to(values, g.of[n].value);
    table.add({the_rest(), vector_text(keys), vector_text(values)});
  }
  add(table);
}

}  // namespace qkv::cli
