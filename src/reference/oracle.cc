#include "reference/oracle.h"

#include <cmath>
#include <limits>

namespace qkv::reference {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// Exponentials of scores, with their maximum taken off, and what they sum to.
template <class Real> struct Exponentials {
  Real max = -std::numeric_limits<Real>::infinity();
  Real of(Real score) const {
    return std::exp(score - (max == -std::numeric_limits<Real>::infinity() ? Real(0) : max));
  }
  void meet(Real score) {
    if (std::isnan(score) || score > max) max = score;
  }
};

template <class Real> Real dot(const std::vector<double>& x, const std::vector<double>& y) {
  Real sum = 0;
  for (size_t d = 0; d < x.size(); ++d) sum += Real(x[d]) * Real(y[d]);
  return sum;
}

/// What RowStatistics says of weights `e` / `seen` over the visible keys and a whole of `all`.
template <class Real>
void describe(const Problem& p, Site row, const std::vector<Real>& e, const std::vector<bool>& visible, Real seen,
              Real all, RowAnswer& answer) {
  Real entropy = 0, distance = 0, largest = -1;
  for (size_t j = 0; j < e.size(); ++j) {
    if (!visible[j]) continue;
    const Real share = e[j] / seen;
    const Site at = p.site(row.batch, row.head, row.row, int64_t(j));
    if (share > 0) entropy -= share * std::log(share);
    distance += share * Real(std::abs(int64_t{at.query} - at.key));
    ++answer.visible_keys;
    if (!(e[j] > largest)) continue;
    largest = e[j];
    answer.max_index = int(j);
  }
  if (all > 0) answer.sink_share = double((all - seen) / all);
  if (answer.visible_keys == 0) return;
  answer.entropy = double(entropy);
  answer.effective_keys = double(std::exp(entropy));
  answer.mean_distance = double(distance);
  answer.max_weight = double(largest / all);
}

}  // namespace

template <class Real> RowAnswer evaluate(const Problem& p, int64_t b, int64_t h, int64_t i) {
  const auto columns = size_t(p.columns(b)), valid = size_t(p.valid_keys(b));
  RowAnswer answer;
  for (auto* scores : {&answer.raw_scores, &answer.modified_scores, &answer.masked_scores})
    scores->assign(columns, kHidden);
  answer.weights.assign(columns, 0);

  const std::vector<double> query = p.query(b, h, i);
  std::vector<Real> score(columns), e(columns);
  std::vector<bool> visible(columns, false);
  Exponentials<Real> exponentials;
  for (size_t j = 0; j < valid; ++j) {
    const Site at = p.site(b, h, i, int64_t(j));
    const Real raw = Real(p.scale()) * dot<Real>(query, p.key(b, h, int64_t(j)));
    score[j] = p.modify(raw, at);
    visible[j] = p.sees(at);
    answer.raw_scores[j] = double(raw);
    answer.modified_scores[j] = double(score[j]);
    if (!visible[j]) continue;
    answer.masked_scores[j] = double(score[j]);
    exponentials.meet(score[j]);
  }
  const std::vector<double> keyless = p.keyless_scores(h);
  for (const double s : keyless) exponentials.meet(Real(s));

  Real seen = 0;
  for (size_t j = 0; j < valid; ++j)
    if (visible[j]) seen += e[j] = exponentials.of(score[j]);
  Real all = seen;
  for (const double s : keyless) all += exponentials.of(Real(s));

  std::vector<Real> out(size_t(p.value_dim()), Real(0));
  for (size_t j = 0; j < valid; ++j) {
    if (!visible[j] || all == 0) continue;
    const Real weight = e[j] / all;
    answer.weights[j] = double(weight);
    const std::vector<double> value = p.value(b, h, int64_t(j));
    const Real kept = weight * Real(p.dropout(p.site(b, h, i, int64_t(j))));
    for (size_t d = 0; d < out.size(); ++d) out[d] += kept * Real(value[d]);
  }
  answer.out.assign(out.begin(), out.end());
  answer.lse = all == 0 ? kHidden : double(exponentials.max + std::log(all));
  describe(p, p.site(b, h, i, 0), e, visible, seen, all, answer);
  return answer;
}

template RowAnswer evaluate<float>(const Problem&, int64_t, int64_t, int64_t);
template RowAnswer evaluate<double>(const Problem&, int64_t, int64_t, int64_t);
template RowAnswer evaluate<long double>(const Problem&, int64_t, int64_t, int64_t);

RowAnswer oracle(const Problem& p, int64_t b, int64_t h, int64_t i) { return evaluate<long double>(p, b, h, i); }

}  // namespace qkv::reference
