#include "qkv/links.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "qkv/error.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

constexpr size_t kMostKept = 1 << 16;  // links until the weaker ones are dropped

struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double x) {
    sum += x;
    count += 1;
  }
  double without(double x) const { return count > 1 ? (sum - x) / static_cast<double>(count - 1) : 0; }
};

/// Means along columns and diagonals of one head. A weight of exactly 0 counts as hidden.
class Habits {
 public:
  Habits(View<const void> w, int64_t batch, int64_t head, const std::vector<bool>& padding, const Call& call)
      : queries_(w.shape[2]),
        columns_(static_cast<size_t>(w.shape[3])),
        diagonals_(static_cast<size_t>(w.shape[2] + w.shape[3])) {
    for (int64_t i = 0; i < w.shape[2]; ++i) {
      stop_point(call.stop);
      for (int64_t j = 0; j < w.shape[3] && !padding[static_cast<size_t>(i)]; ++j) {
        const double x = element(w, batch, head, i, j);
        if (x == 0) continue;
        columns_[static_cast<size_t>(j)].add(x);
        diagonals_[diagonal(i, j)].add(x);
      }
    }
  }
  double usual(int64_t i, int64_t j, double x) const {
    return std::max(columns_[static_cast<size_t>(j)].without(x), diagonals_[diagonal(i, j)].without(x));
  }

 private:
  size_t diagonal(int64_t i, int64_t j) const { return static_cast<size_t>(j - i + queries_); }
  int64_t queries_;
  std::vector<Mean> columns_, diagonals_;
};

/// A NaN first: it is to be seen, and must not break the order.
double rank_of(const RankedLink& r, Rank rank) {
  const double x = static_cast<double>(r.link.weight) - (rank == Rank::kSurprise ? r.usual : 0);
  return std::isnan(x) ? INFINITY : x;
}

void keep_first(std::vector<RankedLink>& links, int count, Rank rank) {
  std::stable_sort(links.begin(), links.end(),
                   [&](const RankedLink& a, const RankedLink& b) { return rank_of(a, rank) > rank_of(b, rank); });
  if (links.size() > static_cast<size_t>(count)) links.resize(static_cast<size_t>(count));
}

/// Calls see(link) for every pair of one head, in reading order, but for rows of padding.
template <class F> void each_link(const Layer& layer, int64_t batch, int64_t head, F see) {
  const View<const void> w = layer.weights();
  const std::vector<bool> padding = layer.padding(batch);
  const Call call = layer.progress().call();
  const Habits habits(w, batch, head, padding, call);
  for (int64_t i = 0; i < w.shape[2]; ++i) {
    if (padding[static_cast<size_t>(i)]) continue;
    stop_point(call.stop);
    for (int64_t j = 0; j < w.shape[3]; ++j) {
      const double x = element(w, batch, head, i, j);
      see(RankedLink{head, {i, j, static_cast<float>(x)}, habits.usual(i, j, x)});
    }
  }
}

std::vector<RankedLink> without_weights(const Layer& layer, int64_t batch, int64_t head, int count) {
  std::vector<RankedLink> links;
  const std::vector<HeadFacts> facts =
      head >= 0 ? std::vector{layer.facts(batch, count, head)} : layer.facts(batch, count);
  for (size_t n = 0; n < facts.size(); ++n) {
    for (const Link& link : facts[n].links) links.push_back({head >= 0 ? head : static_cast<int64_t>(n), link, -1});
  }
  keep_first(links, count, Rank::kWeight);
  return links;
}

}  // namespace

std::vector<RankedLink> rank_links(const Layer& layer, int64_t batch, int64_t head, int count, Rank rank) {
  const View<const void> w = layer.weights();
  if (!w) return without_weights(layer, batch, head, count);
  std::vector<RankedLink> links;
  const int64_t offset = layer.offset(batch);
  for (int64_t h = head >= 0 ? head : 0; h <= (head >= 0 ? head : layer.heads() - 1); ++h) {
    layer.progress().begin(head_name(layer, h, batch));
    each_link(layer, batch, h, [&](const RankedLink& r) {
      if (rank == Rank::kSurprise && (r.link.key == 0 || r.link.key == r.link.query + offset)) return;
      if (!(r.link.weight > 0)) return;
      links.push_back(r);
      if (links.size() > kMostKept + static_cast<size_t>(count)) keep_first(links, count, rank);
    });
    keep_first(links, count, rank);
  }
  return links;
}

std::vector<RankedLink> links_between(const Layer& layer, int64_t batch, int64_t head, const std::vector<bool>& queries,
                                      const std::vector<bool>& keys) {
  const View<const void> w = layer.weights();
  if (!w)
    throw OptionError("--between: the sequence is too long to look at every pair; ask for the strongest links (--top)");
  std::vector<RankedLink> links;
  each_link(layer, batch, head, [&](const RankedLink& r) {
    const auto i = static_cast<size_t>(r.link.query), j = static_cast<size_t>(r.link.key);
    if (queries[i] && keys[j]) links.push_back(r);
  });
  return links;
}

}  // namespace qkv::cli
