#include "qkv/page_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "core/ceil_div.h"
#include "qkv/observers.h"
#include "qkv/part.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

constexpr double kMostNumbers = 1 << 24;  // of a matrix in memory

std::vector<int64_t> row_shape(const Problem& p) {
  if (p.packed) return {p.inputs.query.shape[0], p.sizes.heads};
  return {p.sizes.batch, p.sizes.heads, p.sizes.queries};
}

/// Weights and masked scores of some rows, {B, H, n, S}.
struct Rows {
  Array weights, scores;
};

Rows compute(const Problem& p, std::span<const int32_t> rows, bool with_scores, Progress& progress) {
  const Sizes& s = p.sizes;
  const auto n = static_cast<int64_t>(rows.size());
  Rows result{Array(sum_type(p), {s.batch, s.heads, n, s.keys}), {}};
  Outputs out;
  out.weights = result.weights.view();
  if (with_scores) {
    result.scores = Array(sum_type(p), {s.batch, s.heads, n, s.keys});
    out.masked_scores = result.scores.view();
  }
  out.matrix_rows = View<const int32_t>(rows.data(), {n});
  progress.forward(p.attention, p.inputs, out);
  return result;
}

void hand_out(const Layer& layer, const Rows& rows, int64_t first, int64_t count,
              const std::function<void(const WeightRow&)>& see) {
  std::vector<float> weights;
  std::vector<uint8_t> hidden;
  for (int64_t b = 0; b < layer.batches(); ++b) {
    const Sequence s = sequence_of(layer, b);
    weights.resize(static_cast<size_t>(s.keys));
    hidden.resize(static_cast<size_t>(s.keys));
    for (int64_t h = 0; h < layer.heads(); ++h) {
      for (int64_t n = 0; n < std::min(count, s.queries - first); ++n) {
        for (int64_t j = 0; j < s.keys; ++j) {
          weights[static_cast<size_t>(j)] = static_cast<float>(element(rows.weights.view(), b, h, n, j));
          hidden[static_cast<size_t>(j)] = element(rows.scores.view(), b, h, n, j) == -INFINITY ? 1 : 0;
        }
        see({b, h, first + n, weights, hidden});
      }
    }
  }
}

void for_each_row_of(const Layer& layer, const Problem& p, const std::function<void(const WeightRow&)>& see) {
  const Sizes& s = p.sizes;
  const double row = static_cast<double>(s.batch) * static_cast<double>(s.heads) * static_cast<double>(s.keys);
  const auto at_once = static_cast<int64_t>(std::clamp(kMostNumbers / std::max(1.0, row), 1.0, 1e9));
  for (int64_t first = 0; first < s.queries; first += at_once) {
    std::vector<int32_t> rows(static_cast<size_t>(std::min(at_once, s.queries - first)));
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
    layer.progress().begin(fmt::format("{}, query {} of {}", layer_name(layer.number()), first, s.queries));
    hand_out(layer, compute(p, rows, true, layer.progress()), first, static_cast<int64_t>(rows.size()), see);
  }
}

void for_each_row_of(View<const void> w, const std::function<void(const WeightRow&)>& see) {
  std::vector<float> row(static_cast<size_t>(w.shape[3]));
  for (int64_t b = 0; b < w.shape[0]; ++b) {
    for (int64_t h = 0; h < w.shape[1]; ++h) {
      for (int64_t i = 0; i < w.shape[2]; ++i) {
        for (int64_t j = 0; j < w.shape[3]; ++j)
          row[static_cast<size_t>(j)] = static_cast<float>(element(w, b, h, i, j));
        see({b, h, i, row, {}});
      }
    }
  }
}

}  // namespace

Sequence sequence_of(const Layer& layer, int64_t batch) {
  const Problem* p = layer.problem();
  if (p == nullptr) return {batch, layer.queries(), layer.keys()};
  return {batch, queries_of(*p, batch), columns_of(*p, batch)};
}

void for_each_row(const Layer& layer, const std::function<void(const WeightRow&)>& see) {
  if (const Problem* p = layer.problem()) for_each_row_of(layer, *p, see);
  else for_each_row_of(layer.weights(), see);
}

bool is_plain(const Problem& p) {
  const auto patterns = p.attention.patterns();
  return p.attention.scores().empty() && std::all_of(patterns.begin(), patterns.end(), [](const auto& pattern) {
           return pattern->exact() && pattern->about().tensors.empty() && !pattern->about().reads_head;
         });
}

KeyRange range_of(const Problem& p, const Sequence& s, int64_t row) {
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
  const KeyRange present{0, narrow(valid_keys(p, s.batch))};
  const Row r{
      narrow(s.batch), 0, narrow(row), narrow(row + offset_of(p, s.batch)), present, narrow(key_start_of(p, s.batch))};
  KeyRange seen = present;
  for (const auto& pattern : p.attention.patterns()) {
    if (!pattern->about().tensors.empty()) continue;
    const KeyRange k = pattern->keys(r);
    seen = {std::max(seen.first, k.first), std::min(seen.last, k.last)};
  }
  return seen.empty() ? KeyRange{0, 0} : seen;
}

std::vector<float> weights_of_rows(const Problem& p, const Sequence& s, std::span<const int32_t> rows,
                                   Progress& progress) {
  const Rows computed = compute(part_of(p, {.batch = s.batch}), rows, false, progress);
  std::vector<float> weights;
  for (int64_t h = 0; h < p.sizes.heads; ++h) {
    for (size_t n = 0; n < rows.size(); ++n) {
      for (int64_t j = 0; j < s.keys; ++j)
        weights.push_back(static_cast<float>(element(computed.weights.view(), 0, h, static_cast<int64_t>(n), j)));
    }
  }
  return weights;
}

std::vector<double> log_sums(const Problem& p, const Sequence& s, int64_t head, const RowSums& sums) {
  const int64_t first = p.packed ? int64_t{p.inputs.cumulative_query_lengths(s.batch)} : 0;
  std::vector<double> lse;
  for (int64_t i = 0; i < s.queries; ++i) {
    const auto at = [&](View<const void> x) {
      return p.packed ? element(x, first + i, head, 0, 0) : element(x, s.batch, head, i, 0);
    };
    lse.push_back(range_of(p, s, i).empty() ? -INFINITY : at(sums.row_max) + std::log(at(sums.row_sum)));
  }
  return lse;
}

int overview_cell(int64_t queries, int64_t keys, int most_cells) {
  return std::max(4, Pyramid::cell_for(queries, keys, most_cells));
}

Overview overview_of(const Problem& p, int most_cells, Progress& progress) {
  const Sizes& s = p.sizes;
  Overview o;
  o.cell = overview_cell(s.queries, s.keys, most_cells);
  const std::vector<int64_t> shape = {s.batch, s.heads, ceil_div(s.queries, o.cell), ceil_div(s.keys, o.cell)};
  o.row_max = Array(sum_type(p), row_shape(p));
  o.row_sum = Array(sum_type(p), row_shape(p));
  o.largest = Array(DType::kFloat32, shape);
  o.mean = Array(DType::kFloat32, shape);
  Outputs out;
  out.row_max = o.row_max.view();
  out.row_sum = o.row_sum.view();
  progress.forward(p.attention, p.inputs, out);
  Pyramid pyramid(o.largest.view().as<float>(), o.mean.view().as<float>(), s.queries, s.keys, o.cell);
  observe(p.attention, p.inputs, o.sums(), {pyramid}, progress.call());
  return o;
}

}  // namespace qkv::cli
