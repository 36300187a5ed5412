#include "qkv/layer.h"

#include <algorithm>

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/masks.h"
#include "qkv/observers.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

constexpr double kMostWeights = 1 << 24;  // of all heads together; above, pictures are made of maxima
constexpr int kPictureSide = 1024;

bool hides_anything(const Problem& p) {
  if (!p.attention.patterns().empty() || p.inputs.key_lengths || p.packed) return true;
  const auto scores = p.attention.scores();
  return std::any_of(scores.begin(), scores.end(), [](const auto& s) { return s->hides(); });
}

DType sum_type(const Problem& p) { return p.inputs.query.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

std::vector<int64_t> matrix_shape(const Sizes& s) { return {s.batch, s.heads, s.queries, s.keys}; }

Array computed_weights(const Problem& p) {
  Array weights(sum_type(p), matrix_shape(p.sizes));
  Outputs out;
  out.weights = weights.view();
  forward(p.attention, p.inputs, out);
  return weights;
}

Matrix matrix_of(View<const void> w, int64_t batch, int64_t head) {
  Matrix m{w.shape[2], w.shape[3], 1, {}, {}};
  m.values.reserve(static_cast<size_t>(m.rows * m.columns));
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.columns; ++j) m.values.push_back(static_cast<float>(element(w, batch, head, i, j)));
  }
  return m;
}

/// At O(L) memory beside the picture.
Matrix picture_of_maxima(const Problem& p, int64_t batch, int64_t head) {
  const Sizes& s = p.sizes;
  const int cell = Pyramid::cell_for(s.queries, s.keys, kPictureSide);
  const std::vector<int64_t> shape = {s.batch, s.heads, (s.queries + cell - 1) / cell, (s.keys + cell - 1) / cell};
  const std::vector<int64_t> rows = p.packed ? std::vector<int64_t>{p.inputs.query.shape[0], s.heads}
                                             : std::vector<int64_t>{s.batch, s.heads, s.queries};
  Array row_max(sum_type(p), rows), row_sum(sum_type(p), rows), largest(DType::kFloat32, shape),
      mean(DType::kFloat32, shape);
  Outputs out;
  out.row_max = row_max.view();
  out.row_sum = row_sum.view();
  forward(p.attention, p.inputs, out);
  Pyramid pyramid(largest.view().as<float>(), mean.view().as<float>(), s.queries, s.keys, cell);
  observe(p.attention, p.inputs, {row_max.view(), row_sum.view()}, {pyramid});
  Matrix m = matrix_of(largest.view(), batch, head);
  m.unit = cell;
  return m;
}

}  // namespace

Layer::Layer(const Dump& dump, const AttentionOptions& options, int number, WeightsFrom from) : number_(number) {
  const bool computes = from == WeightsFrom::kQueriesAndKeys && (dump.has(number, "q") || !dump.has(number, "weights"));
  if (computes) {
    problem_ = make_problem(options, dump, number);
    sizes_ = problem_->sizes;
    whole_ = sizes_.pairs() <= kMostWeights;
    if (whole_) weights_ = computed_weights(*problem_);
    return;
  }
  auto found = dump.find(number, "weights");
  if (!found)
    throw OptionError(fmt::format("{} has no {}weights; leave --from-file out to compute them from q and k",
                                  dump.path(), layer_prefix(number)));
  weights_ = std::move(*found);
  whole_ = true;
  const View<const void> w = weights();
  if (w.rank != 4)
    throw ShapeError(fmt::format("weights: expected {{B, H, L, S}}, {{H, L, S}} or {{L, S}}, got {}", shape_text(w)));
  sizes_.batch = w.shape[0];
  sizes_.heads = w.shape[1];
  sizes_.queries = w.shape[2];
  sizes_.keys = w.shape[3];
}

View<const void> Layer::weights() const { return whole_ ? as_four_axes(weights_.view()) : View<const void>(); }

int64_t Layer::offset(int64_t batch) const {
  return problem_ ? offset_of(*problem_, batch) - key_start_of(*problem_, batch) : sizes_.keys - sizes_.queries;
}

std::vector<HeadFacts> Layer::facts(int64_t batch, int links) const {
  return problem_ ? facts_of(*problem_, batch, links) : facts_of_weights(weights(), batch, links);
}

std::vector<bool> Layer::padding(int64_t batch) const {
  return problem_ ? padding_of(*problem_, batch) : std::vector<bool>(static_cast<size_t>(sizes_.queries));
}

Matrix Layer::picture(int64_t batch, int64_t head) const {
  if (!whole_) return picture_of_maxima(*problem_, batch, head);
  Matrix m = matrix_of(weights(), batch, head);
  if (!problem_ || !hides_anything(*problem_)) return m;
  Array rule(DType::kUInt8, matrix_shape(sizes_));
  hiding_rule_of(problem_->attention, problem_->inputs, rule.view().as<uint8_t>());
  const View<uint8_t> r = rule.view().as<uint8_t>();
  m.hidden.assign(&r(batch, head), &r(batch, head) + m.values.size());
  return m;
}

}  // namespace qkv::cli
