#include "qkv/layer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/ceil_div.h"
#include "core/parallel.h"
#include "qkv/error.h"
#include "qkv/masks.h"
#include "qkv/observers.h"
#include "qkv/part.h"
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

std::vector<int64_t> matrix_shape(const Sizes& s) { return {s.batch, s.heads, s.queries, s.keys}; }

Array computed_weights(const Problem& p, Progress& progress) {
  Array weights(sum_type(p), matrix_shape(p.sizes));
  Outputs out;
  out.weights = weights.view();
  progress.forward(p.attention, p.inputs, out);
  return weights;
}

Matrix matrix_of(View<const void> w, int64_t batch, int64_t head, const Call& call) {
  Matrix m{w.shape[2], w.shape[3], 1, {}, {}};
  m.values.reserve(static_cast<size_t>(m.rows * m.columns));
  for (int64_t i = 0; i < m.rows; ++i) {
    stop_point(call.stop);
    for (int64_t j = 0; j < m.columns; ++j) m.values.push_back(static_cast<float>(element(w, batch, head, i, j)));
  }
  return m;
}

/// Keys that each query sees, {L}; of weights alone those that are not exactly 0.
std::vector<float> visible_of(const Problem& part, Progress& progress) {
  Array visible(DType::kInt32, {1, 1, part.sizes.queries});
  Outputs out;
  out.rows.visible_keys = visible.view().as<int32_t>();
  progress.forward(part.attention, part.inputs, out);
  const auto* first = static_cast<const int32_t*>(visible.data());
  return {first, first + visible.size()};
}
std::vector<float> visible_of(const Matrix& m) {
  std::vector<float> visible(static_cast<size_t>(m.rows));
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.columns; ++j) visible[static_cast<size_t>(i)] += m.values[m.at(i, j)] != 0 ? 1.0F : 0.0F;
  }
  return visible;
}

/// The largest weight times factor[row] of each cell of {1, 1, L, S}.
struct LargestOfCells {
  Matrix& cells;
  const std::vector<float>& factor;
  void see(float weight, Site at) {
    float& cell = values[cells.at(at.row / cells.unit, at.column / cells.unit)];
    const float x = weight * factor[static_cast<size_t>(at.row)];
    if (std::isnan(x) || x > cell) cell = x;
  }
  void see(double weight, Site at) { see(static_cast<float>(weight), at); }
  void join(const LargestOfCells& later) {
    for (size_t n = 0; n < values.size(); ++n) {
      if (std::isnan(later.values[n]) || later.values[n] > values[n]) values[n] = later.values[n];
    }
  }
  void clear() { std::fill(values.begin(), values.end(), 0.0F); }
  std::vector<float> values = std::vector<float>(static_cast<size_t>(cells.rows * cells.columns));
};

/// At O(L) memory beside the picture.
Matrix picture_of_maxima(const Problem& part, Measure measure, Progress& progress) {
  const int64_t queries = part.sizes.queries, keys = part.sizes.keys;
  const int cell = Pyramid::cell_for(queries, keys, kPictureSide);
  Matrix m{ceil_div(queries, cell), ceil_div(keys, cell), cell, {}, {}};
  Array row_max(sum_type(part), {1, 1, queries}), row_sum(sum_type(part), {1, 1, queries});
  Outputs out;
  out.row_max = row_max.view();
  out.row_sum = row_sum.view();
  progress.forward(part.attention, part.inputs, out);
  const std::vector<float> factor =
      measure == Measure::kLift ? visible_of(part, progress) : std::vector<float>(static_cast<size_t>(queries), 1.0F);
  LargestOfCells largest{m, factor};
  observe(part.attention, part.inputs, {row_max.view(), row_sum.view()}, {largest}, progress.call());
  m.values = std::move(largest.values);
  return m;
}

/// Of a matrix that has every pair of a head; it may be larger than the head, where packed sequences are shorter.
void mark_hidden(Matrix& m, const Problem& part) {
  if (m.values.empty() || !(hides_anything(part) || m.rows > part.sizes.queries || m.columns > part.sizes.keys)) return;
  Array rule(DType::kUInt8, {1, 1, part.sizes.queries, part.sizes.keys});
  hiding_rule_of(part.attention, part.inputs, rule.view().as<uint8_t>());
  const View<const uint8_t> r = std::as_const(rule).view().as<const uint8_t>();
  m.hidden.assign(m.values.size(), 1);
  for (int64_t i = 0; i < r.shape[2]; ++i) std::copy_n(&r(0, 0, i), r.shape[3], &m.hidden[m.at(i, 0)]);
}

/// Refuses what cannot be weights: a negative one, NaN, a row that sums to more than 1 (16-bit weights round, each by 2^-9).
void check_weights(View<const void> w, const Call& call) {
  const auto refuse = [&](const char* what, double number, int64_t b, int64_t h, int64_t i) {
    throw OptionError(fmt::format(
        "weights {} are not those of an attention: {} {:.4g} in row [{}, {}, {}]; each row is a softmax, and sums to "
        "at most 1; give q and k instead, or what comes out of the softmax",
        shape_text(w), what, number, b, h, i));
  };
  const bool narrow = w.dtype == DType::kFloat16 || w.dtype == DType::kBFloat16;
  for (int64_t b = 0; b < w.shape[0]; ++b)
    for (int64_t h = 0; h < w.shape[1]; ++h)
      for (int64_t i = 0; i < w.shape[2]; ++i) {
        stop_point(call.stop);
        double sum = 0;
        for (int64_t j = 0; j < w.shape[3]; ++j) {
          const double x = element(w, b, h, i, j);
          if (!(x >= 0)) refuse("there is", x, b, h, i);
          sum += x;
        }
        if (sum > (narrow ? 1.02 : 1.001)) refuse("the sum is", sum, b, h, i);
      }
}

}  // namespace

std::string layer_name(int number) { return number < 0 ? "all heads" : fmt::format("layer {}", number); }

std::string head_name(const Layer& layer, int64_t head, int64_t batch) {
  std::string text = layer.number() < 0 ? "" : fmt::format("layer {}, ", layer.number());
  text += fmt::format("head {}", head);
  return layer.batches() > 1 ? text + fmt::format(", batch entry {}", batch) : text;
}

Layer::Layer(Problem problem, int number, Progress& progress)
    : number_(number), progress_(&progress), problem_(std::move(problem)), sizes_(problem_->sizes) {
  whole_ = sizes_.pairs() <= kMostWeights;
  if (!whole_) return;
  progress.begin(layer_name(number_));
  memory_ = computed_weights(*problem_, progress);
  weights_ = std::as_const(memory_).view();
}

Layer::Layer(Array weights, Align align, int number, Progress& progress)
    : Layer(std::as_const(weights).view(), align, number, progress) {
  memory_ = std::move(weights);
}

Layer::Layer(View<const void> weights, Align align, int number, Progress& progress)
    : number_(number), progress_(&progress), weights_(as_four_axes(weights)), whole_(true) {
  const View<const void> w = weights_;
  if (w.rank != 4)
    throw ShapeError(fmt::format("weights: expected {{B, H, L, S}}, {{H, L, S}} or {{L, S}}, got {}", shape_text(w)));
  sizes_.batch = w.shape[0];
  sizes_.heads = w.shape[1];
  sizes_.queries = w.shape[2];
  sizes_.keys = w.shape[3];
  check_weights(w, progress.call());
  if (align == Align::kBottomRight) offset_ = sizes_.keys - sizes_.queries;
}

int64_t Layer::offset(int64_t batch) const {
  return problem_ ? offset_of(*problem_, batch) - key_start_of(*problem_, batch) : offset_;
}

std::vector<HeadFacts> Layer::facts(int64_t batch, int links) const {
  if (problem_) {
    progress_->begin(layer_name(number_));
    return facts_of(part_of(*problem_, {.batch = batch}), 0, links, *progress_);
  }
  std::vector<HeadFacts> all;
  for (int64_t h = 0; h < heads(); ++h) all.push_back(facts(batch, links, h));
  return all;
}

HeadFacts Layer::facts(int64_t batch, int links, int64_t head) const {
  progress_->begin(head_name(*this, head, batch));
  if (!problem_) return facts_of_weights(weights_, batch, head, offset(batch), links, progress_->call());
  return facts_of(part_of(*problem_, {.batch = batch, .head = head}), 0, links, *progress_).front();
}

std::vector<bool> Layer::padding(int64_t batch) const {
  return problem_ ? padding_of(*problem_, batch) : std::vector<bool>(static_cast<size_t>(sizes_.queries));
}

Matrix Layer::picture(int64_t batch, int64_t head, Measure measure) const {
  if (measure == Measure::kGradient) return attribution(batch, head, 0).picture;
  progress_->begin(head_name(*this, head, batch));
  std::optional<Problem> part;
  if (problem_) part = part_of(*problem_, {.batch = batch, .head = head});
  if (!whole_) return picture_of_maxima(*part, measure, *progress_);
  Matrix m = matrix_of(weights_, batch, head, progress_->call());
  if (measure == Measure::kLift) {
    // Packed sequences are shorter than the matrix; rows past their end have no weights.
    std::vector<float> visible = part ? visible_of(*part, *progress_) : visible_of(m);
    visible.resize(static_cast<size_t>(m.rows));
    for (size_t n = 0; n < m.values.size(); ++n) m.values[n] *= visible[n / static_cast<size_t>(m.columns)];
  }
  if (part) mark_hidden(m, *part);
  return m;
}

Attribution Layer::attribution(int64_t batch, int64_t head, size_t links) const {
  progress_->begin(head_name(*this, head, batch));
  const Problem part = part_of(*problem_, {.batch = batch, .head = head});
  Attribution a = attribution_of(part, links, *progress_);
  if (a.picture.unit == 1) mark_hidden(a.picture, part);
  return a;
}

std::vector<double> Layer::row(int64_t batch, int64_t head, int64_t query) const {
  std::vector<double> row(static_cast<size_t>(keys()));
  if (whole_) {
    for (int64_t j = 0; j < keys(); ++j) row[static_cast<size_t>(j)] = element(weights_, batch, head, query, j);
    return row;
  }
  const Problem part = part_of(*problem_, {batch, head, query, 1});
  const Array w = computed_weights(part, *progress_);
  for (int64_t j = 0; j < part.sizes.keys; ++j) row[static_cast<size_t>(j)] = element(w.view(), 0, 0, 0, j);
  return row;
}

}  // namespace qkv::cli
