// The steps of one query as a page of a textbook: what stands around scores and weights.
#include "qkv/explain_page.h"

#include <numeric>

#include "qkv/fold.h"
#include "qkv/see.h"
#include "qkv/views.h"

namespace qkv::cli {

Page::Page(const Explanation& e, const Problem& problem, const Tokens& tokens, int most, const Screen& screen)
    : e_(e), problem_(problem), tokens_(tokens), screen_(screen), dot_(screen.unicode ? "·" : "*") {
  choose(static_cast<size_t>(most));
}

std::string Page::write(const std::vector<TensorFacts>& tensors) {
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
  if (e_.gradients) gradients();
  agreement();
  return text_;
}

/// All keys in their order, or the strongest first.
void Page::choose(size_t most) {
  shown_.resize(e_.keys.size());
  std::iota(shown_.begin(), shown_.end(), size_t{0});
  if (shown_.size() <= most) return;
  const auto rank = [&](size_t n) { return std::isnan(e_.keys[n].weight) ? INFINITY : e_.keys[n].weight; };
  const auto stronger = [&](size_t a, size_t b) { return rank(a) != rank(b) ? rank(a) > rank(b) : a < b; };
  const auto last = shown_.begin() + static_cast<ptrdiff_t>(most);
  std::partial_sort(shown_.begin(), last, shown_.end(), stronger);
  rest_.assign(last, shown_.end());
  std::sort(rest_.begin(), rest_.end());
  shown_.resize(most);
}

void Page::step(const std::string& name, const std::string& formula) {
  line(fmt::format("\n{}{}. {}{}   {}", bold(screen_.colors), ++step_, name, plain(screen_.colors), formula));
}

void Page::add(const Table& table) { text_ += table.text(screen_, 3); }

std::string Page::dot_text(const std::vector<double>& a, const std::vector<double>& b) const {
  std::string text;
  for (size_t n = 0; n < a.size(); ++n)
    text += n == 0 ? times(a[n], b[n]) : fmt::format(" + {} {} {}", factor(a[n]), dot_, factor(b[n]));
  return text;
}

std::string Page::key_name(const KeySteps& k) const { return token_name(tokens_.keys, k.key); }

void Page::tensor_table(const std::vector<TensorFacts>& tensors) {
  Table table({{"tensor", Side::kLeft},
               {"shape", Side::kLeft},
               {"type", Side::kLeft, Narrow::kDrop},
               {"bytes", Side::kRight, Narrow::kFirst},
               {"rows sum to", Side::kLeft, Narrow::kDrop}});
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

void Page::what_is_explained() {
  std::string where = fmt::format("Query {} of head {}", token_name(tokens_.queries, e_.query), e_.head);
  if (problem_.sizes.batch > 1) where += fmt::format(", batch entry {}", e_.batch);
  line(fmt::format("\n{}{}{}: {}", bold(screen_.colors), where, plain(screen_.colors),
                   safe_line(problem_.attention.text())));
  line(fmt::format("   q = {}", vector_text(e_.query_vector)));
  if (e_.missing_keys > 0)
    line(fmt::format("   {} of {} columns are past the length: there is no such key", e_.missing_keys,
                     e_.missing_keys + static_cast<int64_t>(e_.keys.size())));
  if (!rest_.empty())
    line(fmt::format("   {} keys; shown are the {} strongest, the strongest first, and what the others hold (top)",
                     e_.keys.size(), shown_.size()));
}

void Page::projections() {
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
    Table table({{"", Side::kLeft}, {"", Side::kRight, Narrow::kDrop}, {"", Side::kRight}});
    for (size_t d = 0; d < e_.query_vector.size(); ++d) {
      std::vector<double> column(row.size());
      for (size_t n = 0; n < row.size(); ++n)
        column[n] = p.weight(p.wq, static_cast<int64_t>(n), e_.head * e_.dim + static_cast<int64_t>(d));
      table.add({fmt::format("q[{}]", d), dot_text(row, column) + "  =", number(e_.query_vector[d])});
    }
    add(table);
  } else {
    line(fmt::format("   q: x times the columns {} to {} of wq", e_.head * e_.dim, (e_.head + 1) * e_.dim - 1));
  }
  Table table({{"key", Side::kLeft, Narrow::kCut},
               {"k = x wk", Side::kLeft, Narrow::kCut},
               {e_.out.empty() ? "" : "v = x wv", Side::kLeft, Narrow::kDrop}});
  for (size_t n : shown_)
    table.add({key_name(e_.keys[n]), vector_text(e_.keys[n].key_vector),
               e_.out.empty() ? "" : vector_text(e_.keys[n].value)});
  add(table);
}

void Page::output_projection() {
  if (e_.projected.empty()) return;
  step("Output projection", "y = (all heads side by side) wo");
  line(fmt::format("   heads side by side = {}", vector_text(e_.heads_out)));
  line(fmt::format("   y = {}", vector_text(e_.projected)));
}

void Page::agreement() {
  line("");
  for (const Agreement& a : e_.agreements) {
    line(fmt::format("{}: the library's {}() differs by {:.2g}; allowed is {:.2g}{}", a.what, a.function, a.difference,
                     a.allowed, a.holds() ? "" : ". THAT IS TOO MUCH"));
  }
}

std::string explanation_text(const Explanation& e, const Problem& p, const std::vector<TensorFacts>& tensors,
                             const Tokens& tokens, int most, const Screen& screen) {
  return fold(Page(e, p, cut_tokens(tokens, screen), most, screen).write(tensors), screen);
}

}  // namespace qkv::cli
