#include "qkv/page_scores.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "core/ceil_div.h"
#include "qkv/numbers.h"
#include "qkv/part.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

using nlohmann::json;

constexpr int64_t kRowsCompared = 16;

/// {1, 1, rows, dim} as numbers one after the other.
std::vector<float> floats_of(View<const void> x) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < x.shape[2]; ++i) {
    for (int64_t d = 0; d < x.shape[3]; ++d) numbers.push_back(static_cast<float>(element(x, 0, 0, i, d)));
  }
  return numbers;
}

/// What the page has of one head, and what it makes of it.
struct Head {
  Halves q, k;
  std::vector<double> lse;
  std::vector<int32_t> first, last;
  double factor = 1;

  double weight(int64_t row, int64_t key, int64_t dim) const {
    const auto i = static_cast<size_t>(row), d = static_cast<size_t>(dim);
    if (key < first[i] || key >= last[i]) return 0;
    double dot = 0;
    for (size_t n = 0; n < d; ++n) {
      dot += static_cast<double>(static_cast<float>(float16::from_bits(q.bits[i * d + n]))) *
             static_cast<double>(static_cast<float>(float16::from_bits(k.bits[static_cast<size_t>(key) * d + n])));
    }
    return std::exp(dot * factor - lse[i]);
  }
};

std::vector<int32_t> spread_rows(int64_t count) {
  const int64_t n = std::min(count, kRowsCompared);
  std::vector<int32_t> rows;
  for (int64_t k = 0; k < n; ++k) rows.push_back(static_cast<int32_t>(n == 1 ? 0 : k * (count - 1) / (n - 1)));
  return rows;
}

/// `exact` {rows, keys} of this head.
double largest_difference(const Head& head, int64_t dim, const Sequence& s, std::span<const int32_t> rows,
                          const float* exact) {
  double largest = 0;
  for (int32_t row : rows) {
    for (int64_t j = 0; j < s.keys; ++j, ++exact)
      largest = std::max(largest, apart(head.weight(row, j, dim), static_cast<double>(*exact)));
  }
  return largest;
}

/// One head of an overview as codes; `scale` undoes that means count pairs of the longest sequence.
class OverviewCodes {
 public:
  OverviewCodes(const Overview& o, const Sequence& s, const Sizes& longest, const Head& head)
      : o_(o),
        s_(s),
        longest_(longest),
        head_(head),
        rows_(ceil_div(s.queries, o.cell)),
        columns_(ceil_div(s.keys, o.cell)) {}

  json write(int64_t h, Blobs& blobs, json& to) {
    std::vector<uint8_t> largest, mean;
    const View<const float> top = o_.largest.view().as<const float>(), middle = o_.mean.view().as<const float>();
    float high = 0;
    bool nan = false;
    for (int64_t r = 0; r < rows_; ++r) {
      const auto [first, last] = hull(r);
      for (int64_t c = 0; c < columns_; ++c) {
        const bool hidden = (c + 1) * o_.cell <= first || c * o_.cell >= last;
        const float t = top(s_.batch, h, r, c), m = middle(s_.batch, h, r, c);
        const bool is_nan = std::isnan(t) || std::isnan(m);
        nan = nan || is_nan;
        if (std::isfinite(t)) high = std::max(high, t);
        largest.push_back(hidden ? kHiddenCode : is_nan ? kNaNCode : code_of(static_cast<double>(t)));
        mean.push_back(hidden ? kHiddenCode : code_of(static_cast<double>(m) * correction(r, c)));
      }
    }
    to["low"] = 0;
    to["high"] = high;
    if (nan) to["nan"] = true;
    return {{"cell", o_.cell},
            {"largest", blobs.add(std::span<const uint8_t>(largest))},
            {"mean", blobs.add(std::span<const uint8_t>(mean))}};
  }

 private:
  /// Keys that some query of a row of cells sees lie in here.
  std::pair<int64_t, int64_t> hull(int64_t cell_row) const {
    int64_t first = s_.keys, last = 0;
    for (int64_t i = cell_row * o_.cell; i < std::min<int64_t>(s_.queries, (cell_row + 1) * o_.cell); ++i) {
      const auto n = static_cast<size_t>(i);
      if (head_.first[n] >= head_.last[n]) continue;
      first = std::min<int64_t>(first, head_.first[n]);
      last = std::max<int64_t>(last, head_.last[n]);
    }
    return {first, last};
  }
  /// Means were taken over the pairs of the longest sequence.
  double correction(int64_t r, int64_t c) const {
    const auto pairs = [&](int64_t queries, int64_t keys) {
      return static_cast<double>(std::min<int64_t>(o_.cell, queries - r * o_.cell) *
                                 std::min<int64_t>(o_.cell, keys - c * o_.cell));
    };
    return pairs(longest_.queries, longest_.keys) / pairs(s_.queries, s_.keys);
  }
  const Overview& o_;
  const Sequence& s_;
  const Sizes& longest_;
  const Head& head_;
  int64_t rows_, columns_;
};

Head make_head(const Problem& p, const Sequence& s, int64_t h, const RowSums& sums) {
  const Problem one = part_of(p, {.batch = s.batch, .head = h});
  Head head;
  head.q = to_halves(floats_of(one.inputs.query));
  head.k = to_halves(floats_of(one.inputs.key));
  head.factor = scale_of(p) * head.q.factor * head.k.factor;
  head.lse = log_sums(p, s, h, sums);
  for (int64_t i = 0; i < s.queries; ++i) {
    const KeyRange r = range_of(p, s, i);
    head.first.push_back(r.first);
    head.last.push_back(r.last);
  }
  return head;
}

}  // namespace

std::map<std::pair<int64_t, int64_t>, json> collect_scores(const Problem& p, const Layer& layer, const PagePart& part,
                                                           Blobs& blobs) {
  Progress& progress = layer.progress();
  progress.begin(layer_name(layer.number()));
  const Overview overview = overview_of(p, part.overview_side, progress);
  std::map<std::pair<int64_t, int64_t>, json> result;
  for (int64_t b : part.batches) {
    const Sequence s = sequence_of(layer, b);
    const std::vector<int32_t> rows = spread_rows(s.queries);
    const std::vector<float> exact = weights_of_rows(p, s, rows, progress);
    for (int64_t h : part.heads) {
      progress.begin(head_name(layer, h, b));
      const Head head = make_head(p, s, h, overview.sums());
      json cells = {{"kind", "scores"},
                    {"dim", p.sizes.dim},
                    {"factor", head.factor},
                    {"q", blobs.add(std::span(head.q.bits))},
                    {"k", blobs.add(std::span(head.k.bits))},
                    {"lse", blobs.add(std::span(head.lse))},
                    {"first", blobs.add(std::span(head.first))},
                    {"last", blobs.add(std::span(head.last))},
                    {"rows_compared", rows.size()}};
      const size_t stride = rows.size() * static_cast<size_t>(s.keys);
      cells["error"] = largest_difference(head, p.sizes.dim, s, rows, exact.data() + static_cast<size_t>(h) * stride);
      cells["overview"] = OverviewCodes(overview, s, p.sizes, head).write(h, blobs, cells);
      result[{b, h}] = std::move(cells);
    }
  }
  return result;
}

}  // namespace qkv::cli
