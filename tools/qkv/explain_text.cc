// The steps of one query as a page of a textbook.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "qkv/explain.h"
#include "qkv/labels.h"
#include "qkv/numbers.h"
#include "qkv/rules.h"
#include "qkv/see.h"
#include "qkv/table.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

constexpr size_t kMostTerms = 4;  // of a sum that is written out

std::string indented(const std::string& text) {
  std::string all;
  for (size_t first = 0; first < text.size();) {
    const size_t last = text.find('\n', first) + 1;
    all += "   " + text.substr(first, last - first);
    first = last;
  }
  return all;
}

class Page {
 public:
  Page(const Explanation& e, const Problem& problem, const Tokens& tokens, int most, const Screen& screen)
      : e_(e), problem_(problem), tokens_(tokens), screen_(screen), dot_(screen.unicode ? "·" : "*") {
    choose(static_cast<size_t>(most));
  }

  std::string write(const std::vector<TensorFacts>& tensors) {
    tensor_table(tensors);
    what_is_explained();
    projections();
    dot_products();
    scaled();
    for (size_t m = 0; m < e_.modifiers.size(); ++m) modified(m);
    masks();
    if (e_.sum == 0) {
      empty_row();
    } else {
      exponentials();
      weights();
      if (!e_.out.empty()) weighted_values();
    }
    output_projection();
    agreement();
    return text_;
  }

 private:
  /// All keys in their order, or the strongest first.
  void choose(size_t most) {
    shown_.resize(e_.keys.size());
    std::iota(shown_.begin(), shown_.end(), size_t{0});
    if (shown_.size() <= most) return;
    const auto rank = [&](size_t n) { return std::isnan(e_.keys[n].weight) ? INFINITY : e_.keys[n].weight; };
    std::stable_sort(shown_.begin(), shown_.end(), [&](size_t a, size_t b) { return rank(a) > rank(b); });
    rest_.assign(shown_.begin() + static_cast<ptrdiff_t>(most), shown_.end());
    shown_.resize(most);
  }

  void line(const std::string& text) { text_ += text + "\n"; }
  void step(const std::string& name, const std::string& formula) {
    line(fmt::format("\n{}{}. {}{}   {}", bold(screen_.colors), ++step_, name, plain(screen_.colors), formula));
  }
  void add(const Table& table) { text_ += indented(table.text(screen_)); }
  std::string key_name(const KeySteps& k) const { return token_name(tokens_.keys, k.key); }
  std::string times(double a, double b) const { return fmt::format("{} {} {}", number(a), dot_, factor(b)); }
  /// A negative factor in parentheses.
  static std::string factor(double x) { return x < 0 ? "(" + number(x) + ")" : number(x); }
  /// "the other 112 keys", where not all are shown.
  std::string the_rest() const { return fmt::format("{} more", rest_.size()); }
  template <class F> std::string range(F value_of) const {
    double low = INFINITY, high = -INFINITY;
    for (size_t n : rest_) {
      low = std::min(low, value_of(e_.keys[n]));
      high = std::max(high, value_of(e_.keys[n]));
    }
    return fmt::format("{} to {}", number(low), number(high));
  }
  template <class F> double sum_of_rest(F value_of) const {
    double sum = 0;
    for (size_t n : rest_) sum += value_of(e_.keys[n]);
    return sum;
  }

  void tensor_table(const std::vector<TensorFacts>& tensors) {
    Table table({{"tensor", Side::kLeft},
                 {"shape", Side::kLeft},
                 {"type", Side::kLeft},
                 {"bytes", Side::kRight},
                 {"rows sum to", Side::kLeft}});
    for (const TensorFacts& t : tensors) {
      std::string sums;
      if (!t.row_sums.empty()) {
        for (double s : t.row_sums) sums += (sums.empty() ? "" : ", ") + number(s);
      } else if (t.rows > 0 && t.other_rows < t.rows) {
        sums = fmt::format("{} to {}", number(t.lowest), number(t.highest));
        if (t.other_rows > 0) sums += fmt::format("; {} rows are not finite", t.other_rows);
      }
      table.add({t.name, t.shape, t.type, std::to_string(t.bytes), sums});
    }
    text_ += table.text(screen_);
  }

  void what_is_explained() {
    std::string where = fmt::format("Query {} of head {}", token_name(tokens_.queries, e_.query), e_.head);
    if (problem_.sizes.batch > 1) where += fmt::format(", batch entry {}", e_.batch);
    line(fmt::format("\n{}{}{}: {}", bold(screen_.colors), where, plain(screen_.colors),
                     safe_line(problem_.attention.text())));
    line(fmt::format("   q = {}", vector_text(e_.query_vector)));
    if (e_.missing_keys > 0)
      line(fmt::format("   {} of {} columns are past the length: there is no such key", e_.missing_keys,
                       e_.missing_keys + static_cast<int64_t>(e_.keys.size())));
    if (!rest_.empty())
      line(fmt::format("   {} keys; shown are the {} strongest, the strongest first, and what the others hold (--top)",
                       e_.keys.size(), shown_.size()));
  }

  void projections() {
    if (!problem_.projections) return;
    const Projections& p = *problem_.projections;
    step_ = -1;
    step("Projections", "q = x wq, k = x wk, v = x wv");
    const View<const void> x = p.x.rank == 2 ? with_axes(p.x, {-1, 0, 1}) : p.x;
    std::vector<double> row(static_cast<size_t>(x.shape[2]));
    for (size_t n = 0; n < row.size(); ++n) row[n] = element(x, e_.batch, e_.query, static_cast<int64_t>(n), 0);
    line(fmt::format("   x = {}, the row of this query; {} of {} numbers; weights lie as {}", vector_text(row),
                     p.heads == 1 ? "1 head" : fmt::format("{} heads", p.heads), e_.dim,
                     p.layout == WeightLayout::kInOut ? "{in, out}" : "{out, in}"));
    if (row.size() <= kMostTerms && e_.query_vector.size() <= 8) {
      Table table({{"", Side::kLeft}, {"", Side::kRight}, {"", Side::kLeft}, {"", Side::kRight}});
      for (size_t d = 0; d < e_.query_vector.size(); ++d) {
        std::string sum;
        for (size_t n = 0; n < row.size(); ++n)
          sum += (n == 0 ? "" : " + ") +
                 times(row[n], p.weight(p.wq, static_cast<int64_t>(n), e_.head * e_.dim + static_cast<int64_t>(d)));
        table.add({fmt::format("q[{}]", d), sum, "=", number(e_.query_vector[d])});
      }
      add(table);
    } else {
      line(fmt::format("   q: x times the columns {} to {} of wq", e_.head * e_.dim, (e_.head + 1) * e_.dim - 1));
    }
    Table table({{"key", Side::kLeft}, {"k = x wk", Side::kLeft}, {e_.out.empty() ? "" : "v = x wv", Side::kLeft}});
    for (size_t n : shown_)
      table.add({key_name(e_.keys[n]), vector_text(e_.keys[n].key_vector),
                 e_.out.empty() ? "" : vector_text(e_.keys[n].value)});
    add(table);
  }

  void dot_products() {
    step("Dot products",
         fmt::format("q {} k = sum over d of q[d] {} k[d]: how alike the query and each key are", dot_, dot_));
    if (static_cast<size_t>(e_.dim) <= kMostTerms) {
      Table table({{"key", Side::kLeft},
                   {"k", Side::kLeft},
                   {"", Side::kRight},
                   {"", Side::kLeft},
                   {fmt::format("q {} k", dot_), Side::kRight}});
      for (size_t n : shown_) {
        const KeySteps& k = e_.keys[n];
        std::string sum;
        for (size_t d = 0; d < k.key_vector.size(); ++d)
          sum += (d == 0 ? "" : " + ") + times(e_.query_vector[d], k.key_vector[d]);
        table.add({key_name(k), vector_text(k.key_vector), sum, "=", number(k.dot)});
      }
      if (!rest_.empty()) table.add({the_rest(), "", "", "", range([](const KeySteps& k) { return k.dot; })});
      return add(table);
    }
    const double length = length_of(e_.query_vector);
    line(fmt::format("   = |q| {} |k| {} cos(angle), with |q| = {}", dot_, dot_, number(length)));
    Table table({{"key", Side::kLeft},
                 {"k", Side::kLeft},
                 {"|k|", Side::kRight},
                 {"cos", Side::kRight},
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

  static double length_of(const std::vector<double>& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  }

  void scaled() {
    const bool usual = !problem_.attention.scale().has_value();
    step("Scaled", usual ? fmt::format("s = q {} k / sqrt(D), 1 / sqrt({}) = {}", dot_, e_.dim, number(e_.scale))
                         : fmt::format("s = scale {} q {} k, scale = {}", dot_, dot_, number(e_.scale)));
    Table table({{"key", Side::kLeft}, {"", Side::kRight}, {"", Side::kLeft}, {"s", Side::kRight}});
    for (size_t n : shown_)
      table.add({key_name(e_.keys[n]), times(e_.scale, e_.keys[n].dot), "=", number(e_.keys[n].scaled)});
    if (!rest_.empty()) table.add({the_rest(), "", "", range([](const KeySteps& k) { return k.scaled; })});
    add(table);
  }

  static double before(const KeySteps& k, size_t m) { return m == 0 ? k.scaled : k.modified[m - 1]; }

  void modified(size_t m) {
    const std::string& text = e_.modifiers[m];
    enum class Kind { kSoftCap, kAlibi, kBias, kOther };
    const Kind kind = text.starts_with("softcap:") ? Kind::kSoftCap
                      : text == "alibi"            ? Kind::kAlibi
                      : text == "bias"             ? Kind::kBias
                                                   : Kind::kOther;
    const std::string cap = kind == Kind::kSoftCap ? text.substr(text.find(':') + 1) : "";
    const char* names[] = {"Soft-cap", "ALiBi", "Bias", "Modifier"};
    const std::string formulas[] = {
        fmt::format("s = {} tanh(s / {}): no score is past {}", cap, cap, cap),
        fmt::format("s = s - slope {} distance, slope = {}: what is far counts less", dot_, number(e_.alibi_slope)),
        "s = s + bias of this pair", text};
    step(names[static_cast<int>(kind)], formulas[static_cast<int>(kind)]);
    Table table({{"key", Side::kLeft}, {"", Side::kRight}, {"", Side::kLeft}, {"s", Side::kRight}});
    for (size_t n : shown_) {
      const KeySteps& k = e_.keys[n];
      const double s = before(k, m), change = k.modified[m] - s;
      std::string sum = number(s);
      if (kind == Kind::kSoftCap) sum = fmt::format("{} tanh({} / {})", cap, number(s), cap);
      if (kind == Kind::kAlibi) sum += fmt::format(" - {} {} {}", number(e_.alibi_slope), dot_, k.distance);
      if (kind == Kind::kBias) sum += fmt::format(" {} {}", change < 0 ? "-" : "+", number(std::abs(change)));
      table.add({key_name(k), sum, "=", number(k.modified[m])});
    }
    if (!rest_.empty()) table.add({the_rest(), "", "", range([m](const KeySteps& k) { return k.modified[m]; })});
    add(table);
  }

  void masks() {
    const bool may_hide = e_.rules.size() > kFirstRule || e_.missing_keys > 0;
    step("Masks", may_hide ? "a hidden key takes no part from here on" : "nothing hides a key");
    if (!may_hide) return;
    if (e_.rules.size() > kFirstRule) {
      Table table({{"key", Side::kLeft}, {"s", Side::kRight}, {"", Side::kLeft}});
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
    if (e_.missing_keys > 0) line(fmt::format("   {} columns are past the length: no such key", e_.missing_keys));
  }

  void empty_row() {
    step("Nothing is left", "this query sees no key");
    line("   The weights are 0, the output is 0 and the log-sum-exp is -inf.");
    if (!e_.out.empty()) line(fmt::format("   out = {}", vector_text(e_.out)));
  }

  void exponentials() {
    std::string whose;
    for (const KeySteps& k : e_.keys) {
      if (k.rule == kVisible && k.score() == e_.maximum && whose.empty())
        whose = (tokens_.keys.empty() ? ", of key " : ", of ") + key_name(k);
    }
    step("Maximum", fmt::format("m = {}{}", number(e_.maximum), whose));
    step("Exponentials", "exp(s - m); taking m off changes no weight, and nothing overflows");
    Table table({{"key", Side::kLeft},
                 {"s", Side::kRight},
                 {"exp(s)", Side::kRight},
                 {"s - m", Side::kRight},
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

  void weights() {
    step("Weights", "w = exp(s - m) / sum");
    Table table({{"key", Side::kLeft}, {"", Side::kRight}, {"", Side::kLeft}, {"w", Side::kRight}});
    double sum = 0;
    const auto row = [&](const std::string& name, double e, double w) {
      table.add({name, fmt::format("{} / {}", number(e), number(e_.sum)), "=", number(w)});
      sum += w;
    };
    for (size_t n : shown_) row(key_name(e_.keys[n]), e_.keys[n].exponential, e_.keys[n].weight);
    if (!rest_.empty())
      row(the_rest(), sum_of_rest([](const KeySteps& k) { return k.exponential; }),
          sum_of_rest([](const KeySteps& k) { return k.weight; }));
    for (const Keyless& k : e_.keyless) row(k.name, k.exponential, k.exponential / e_.sum);
    table.add({"sum", "", "", number(sum)});
    add(table);
    if (!e_.keyless.empty()) line("   What has no key has no value: its weight is lost to the output.");
  }

  void weighted_values() {
    step("Weighted values", fmt::format("out = sum of w {} v", dot_));
    Table table(
        {{"key", Side::kLeft}, {"w", Side::kRight}, {"v", Side::kLeft}, {fmt::format("w {} v", dot_), Side::kLeft}});
    const auto weighted = [](const KeySteps& k) {
      std::vector<double> wv = k.value;
      for (double& x : wv) x = k.weight == 0 ? 0 : x * k.weight;
      return wv;
    };
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

  void output_projection() {
    if (e_.projected.empty()) return;
    step("Output projection", "y = (all heads side by side) wo");
    line(fmt::format("   heads side by side = {}", vector_text(e_.heads_out)));
    line(fmt::format("   y = {}", vector_text(e_.projected)));
  }

  void agreement() {
    line("");
    for (const Agreement& a : e_.agreements) {
      line(fmt::format("{}: the library's forward() differs by {:.2g}; allowed is {:.2g}{}", a.what, a.difference,
                       a.allowed, a.holds() ? "" : ". THAT IS TOO MUCH"));
    }
  }

  const Explanation& e_;
  const Problem& problem_;
  const Tokens& tokens_;
  const Screen& screen_;
  const char* dot_;
  std::vector<size_t> shown_, rest_;
  int step_ = 0;
  std::string text_;
};

}  // namespace

std::string explanation_text(const Explanation& e, const Problem& p, const std::vector<TensorFacts>& tensors,
                             const Tokens& tokens, int most, const Screen& screen) {
  return Page(e, p, tokens, most, screen).write(tensors);
}

}  // namespace qkv::cli
