#include "qkv/attribution.h"

#include <algorithm>
#include <cmath>

#include "core/ceil_div.h"
#include "qkv/observers.h"
#include "qkv/part.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

constexpr int64_t kRowsAtOnce = 64;

/// Some rows of finished weights, and the gradients by them, {rows, S} each.
struct Rows {
  Array weights, gradients;
};

Rows rows_of(const Problem& part, const Array& values) {
  const Sizes& s = part.sizes;
  Rows rows{Array(sum_type(part), {1, 1, s.queries, s.keys}), Array(DType::kFloat64, {1, 1, s.queries, s.keys})};
  Outputs out;
  out.weights = rows.weights.view();
  forward(part.attention, part.inputs, out);
  const View<const double> v = values.view().as<const double>();
  const View<double> by_weight = rows.gradients.view().as<double>();
  for (int64_t i = 0; i < s.queries; ++i) {
    const std::vector<double> dout = as_doubles(part.dout, 0, 0, i);
    for (int64_t j = 0; j < s.keys; ++j) {
      for (int64_t d = 0; d < s.value_dim; ++d) by_weight(0, 0, i, j) += dout[static_cast<size_t>(d)] * v(0, 0, j, d);
    }
  }
  return rows;
}

double size_of(const AttributedLink& link) { return std::isnan(link.share()) ? INFINITY : std::abs(link.share()); }

/// Takes links in reading order.
class Collector {
 public:
  Collector(const Sizes& s, size_t count) : count_(count) {
    const int cell = Pyramid::cell_for(s.queries, s.keys, kPictureSide);
    result_.picture = {ceil_div(s.queries, int64_t{cell}), ceil_div(s.keys, int64_t{cell}), cell, {}, {}};
    result_.picture.values.assign(static_cast<size_t>(result_.picture.rows * result_.picture.columns), 0.0F);
  }

  void take(const AttributedLink& link) {
    Matrix& m = result_.picture;
    const auto share = static_cast<float>(link.share());
    float& cell = m.values[m.at(link.query / m.unit, link.key / m.unit)];
    if (is_larger(share, cell)) cell = share;
    result_.sum += link.share();
    rank(link);
  }

  Attribution finish() {
    std::sort_heap(result_.links.begin(), result_.links.end(), goes_before);
    return std::move(result_);
  }

 private:
  static constexpr int kPictureSide = 1024;

  static bool goes_before(const AttributedLink& a, const AttributedLink& b) {
    if (size_of(a) != size_of(b)) return size_of(a) > size_of(b);
    return a.query != b.query ? a.query < b.query : a.key < b.key;
  }
  /// Keeps a heap whose first is the last in rank.
  void rank(const AttributedLink& link) {
    auto& links = result_.links;
    if (link.weight == 0 || count_ == 0) return;
    if (links.size() == count_) {
      if (!goes_before(link, links.front())) return;
      std::pop_heap(links.begin(), links.end(), goes_before);
      links.pop_back();
    }
    links.push_back(link);
    std::push_heap(links.begin(), links.end(), goes_before);
  }

  size_t count_;
  Attribution result_;
};

}  // namespace

Attribution attribution_of(const Problem& head, size_t count, Progress& progress) {
  const Array values = to_type(head.inputs.value, DType::kFloat64);
  Collector collector(head.sizes, count);
  const int64_t queries = head.sizes.queries;
  for (int64_t first = 0; first < queries; first += kRowsAtOnce, progress.advance()) {
    const Problem part = part_of(head, {0, 0, first, std::min(kRowsAtOnce, queries - first)});
    const Rows rows = rows_of(part, values);
    for (int64_t i = 0; i < part.sizes.queries; ++i) {
      for (int64_t j = 0; j < part.sizes.keys; ++j)
        collector.take(
            {first + i, j, element(rows.weights.view(), 0, 0, i, j), element(rows.gradients.view(), 0, 0, i, j)});
    }
  }
  return collector.finish();
}

}  // namespace qkv::cli
