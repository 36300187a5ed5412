// The page of qkv explain, written step by step.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "qkv/explain.h"
#include "qkv/numbers.h"
#include "qkv/table.h"

namespace qkv::cli {

class Page {
 public:
  Page(const Explanation&, const Problem&, const Tokens&, int most, const Screen&);
  std::string write(const std::vector<TensorFacts>&);

 private:
  static constexpr size_t kMostTerms = 4;  // of a sum that is written out

  void choose(size_t most);

  void tensor_table(const std::vector<TensorFacts>&);
  void what_is_explained();
  void projections();
  void output_projection();
  void agreement();
  // explain_scores.cc
  void dot_products();
  void scaled();
  void modified(size_t m);
  void masks();
  // explain_weights.cc
  void empty_row();
  void exponentials();
  void weights();
  void weighted_values();
  // explain_gradients_page.cc
  void gradients();
  void by_weights();
  void common_part();
  void by_scores();
  void through(size_t m);
  void by_query();
  void by_keys_and_values();

  enum class Kind : uint8_t { kSoftCap, kAlibi, kBias, kOther };
  static Kind kind_of(const std::string& modifier);
  void line(const std::string& text) { text_ += text + "\n"; }
  void step(const std::string& name, const std::string& formula);
  void add(const Table&);
  std::string key_name(const KeySteps&) const;
  std::string times(double a, double b) const { return fmt::format("{} {} {}", number(a), dot_, factor(b)); }
  /// "1 * 2 + (-1) * 3".
  std::string dot_text(const std::vector<double>& a, const std::vector<double>& b) const;
  /// A negative factor in parentheses.
  static std::string factor(double x) { return x < 0 ? "(" + number(x) + ")" : number(x); }
  /// The keys that are not shown one by one: "112 more".
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

  /// A number of each key's gradients.
  template <class F> double sum_of_rest_gradients(F value_of) const {
    double sum = 0;
    for (size_t n : rest_) sum += value_of(e_.gradients->of[n]);
    return sum;
  }

  const Explanation& e_;
  const Problem& problem_;
  const Tokens& tokens_;
  const Screen& screen_;
  const char* dot_;
  std::vector<size_t> shown_, rest_;  ///< of e_.keys
  int step_ = 0;
  std::string text_;
};

}  // namespace qkv::cli
