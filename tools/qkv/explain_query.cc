// Attention of one query, in steps that can be shown.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "qkv/explain_gradients.h"
#include "qkv/masks.h"
#include "qkv/numbers.h"
#include "qkv/part.h"
#include "qkv/rules.h"
#include "qkv/views.h"
#include "reference/plain.h"

namespace qkv::cli {

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// One modifier alone, so that each is a step.
std::vector<Attention> modifiers_of(const Attention& attention) {
  std::vector<Attention> single;
  for (const auto& score : attention.scores()) single.push_back(Attention().add(score));
  return single;
}

class Explainer {
 public:
  Explainer(const Problem& whole, int64_t batch, int64_t head, int64_t query, const Call& call)
      : whole_(whole),
        call_(call),
        part_(part_of(whole, {batch, head, query, 1})),
        reference_(part_.attention, part_.inputs) {
    reference_.stop_by(call.stop);
    e_.batch = batch;
    e_.head = head;
    e_.query = query;
  }

  Explanation explain() {
    const Attention& a = part_.attention;
    e_.dim = part_.sizes.dim;
    e_.scale = reference_.scale();
    e_.rules = rule_names(a);
    for (const auto& score : a.scores()) e_.modifiers.push_back(score->about().text);
    if (part_.inputs.alibi_slopes) {
      const View<const void> slopes = with_axes(part_.inputs.alibi_slopes, {-1, -1, -1, 0});
      e_.alibi_slope = element(slopes, 0, 0, 0, 0);
    }
    e_.query_vector = as_doubles(part_.inputs.query, 0, 0, 0);
    scores();
    softmax();
    values();
    output_projection();
    compare();
    if (part_.dout) add_gradients(e_, part_, reference_, call_);
    return std::move(e_);
  }

 private:
  void scores() {
    Array rules(DType::kUInt8, {1, 1, 1, part_.sizes.keys});
    hiding_rule_of(part_.attention, part_.inputs, rules.view().as<uint8_t>());
    const std::vector<Attention> modifiers = modifiers_of(part_.attention);
    std::vector<std::unique_ptr<reference::Problem>> single;
    single.reserve(modifiers.size());
    for (const Attention& m : modifiers) single.push_back(std::make_unique<reference::Problem>(m, part_.inputs));
    for (int64_t j = 0; j < part_.sizes.keys; ++j) {
      stop_point(call_.stop);
      KeySteps k;
      k.key = j;
      k.rule = static_cast<const uint8_t*>(rules.data())[j];
      if (k.rule == kNoKey) {
        ++e_.missing_keys;
        continue;
      }
      const Site at = reference_.site(0, 0, 0, j);
      k.distance = std::abs(at.query - at.key);
      k.key_vector = as_doubles(part_.inputs.key, 0, 0, j);
      k.value = as_doubles(part_.inputs.value, 0, 0, j);
      for (size_t d = 0; d < k.key_vector.size(); ++d) k.dot += e_.query_vector[d] * k.key_vector[d];
      k.scaled = e_.scale * k.dot;
      for (const auto& m : single) k.modified.push_back(m->modify<double>(k.score(), at));
      e_.keys.push_back(std::move(k));
    }
    const std::vector<double> keyless = reference_.keyless_scores(0);
    for (size_t n = 0; n < keyless.size(); ++n)
      e_.keyless.push_back({n == 0 && part_.attention.has_sinks() ? "sink" : "zero key", keyless[n]});
  }

  /// A NaN that is seen stays.
  void meet(double score) {
    if (std::isnan(score) || score > e_.maximum) e_.maximum = score;
  }

  void softmax() {
    e_.maximum = kNothing;
    for (const KeySteps& k : e_.keys) {
      if (k.rule == kVisible) meet(k.score());
    }
    for (const Keyless& k : e_.keyless) meet(k.score);
    const double shift = e_.maximum == kNothing ? 0 : e_.maximum;
    for (KeySteps& k : e_.keys) {
      if (k.rule == kVisible) e_.sum += k.exponential = std::exp(k.score() - shift);
    }
    for (Keyless& k : e_.keyless) e_.sum += k.exponential = std::exp(k.score - shift);
    e_.lse = e_.sum == 0 ? kNothing : e_.maximum + std::log(e_.sum);
  }

  void values() {
    e_.out.assign(static_cast<size_t>(part_.sizes.value_dim), 0.0);
    for (KeySteps& k : e_.keys) {
      stop_point(call_.stop);
      if (k.rule != kVisible || e_.sum == 0) continue;
      k.weight = k.exponential / e_.sum;
      for (size_t d = 0; d < e_.out.size(); ++d) e_.out[d] += k.weight * k.value[d];
    }
  }

  void output_projection() {
    if (!whole_.projections || !whole_.projections->wo) return;
    const Problem row = part_of(whole_, {.batch = e_.batch, .first_query = e_.query, .queries = 1});
    Array out(row.inputs.query.dtype, {1, row.sizes.heads, 1, row.sizes.value_dim});
    Outputs outputs;
    outputs.out = out.view();
    forward(row.attention, row.inputs, outputs, call_);
    const View<const void> heads = std::as_const(out).view();
    for (int64_t h = 0; h < row.sizes.heads; ++h) {
      const std::vector<double> one = as_doubles(heads, 0, h, 0);
      e_.heads_out.insert(e_.heads_out.end(), one.begin(), one.end());
    }
    const Projections& p = *whole_.projections;
    e_.projected.assign(static_cast<size_t>(p.outputs_of(p.wo)), 0.0);
    for (size_t c = 0; c < e_.projected.size(); ++c) {
      for (size_t n = 0; n < e_.heads_out.size(); ++n)
        e_.projected[c] += e_.heads_out[n] * p.weight(p.wo, static_cast<int64_t>(n), static_cast<int64_t>(c));
    }
  }

  void compare() {
    const DType type = part_.inputs.query.dtype;
    const DType sums = type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    Array out(type, {1, 1, 1, part_.sizes.value_dim}), weights(sums, {1, 1, 1, part_.sizes.keys});
    Outputs outputs;
    outputs.out = out.view();
    outputs.weights = weights.view();
    forward(part_.attention, part_.inputs, outputs, call_);
    const reference::RowAnswer plain = reference::plain(reference_, type, 0, 0, 0),
                               exact = reference::oracle(reference_, 0, 0, 0);
    std::vector<double> own(static_cast<size_t>(part_.sizes.keys));
    for (const KeySteps& k : e_.keys) own[static_cast<size_t>(k.key)] = k.weight;
    e_.agreements.push_back(
        agree("weights", "forward",
              {own, as_doubles(std::as_const(weights).view(), 0, 0, 0), plain.weights, exact.weights, sums}));
    if (part_.sizes.value_dim > 0)
      e_.agreements.push_back(agree(
          "out", "forward", {e_.out, as_doubles(std::as_const(out).view(), 0, 0, 0), plain.out, exact.out, type}));
  }

  const Problem& whole_;
  const Call& call_;
  Problem part_;
  reference::Problem reference_;
  Explanation e_;
};

}  // namespace

Explanation explain_query(const Problem& whole, int64_t batch, int64_t head, int64_t query, const Call& call) {
  return Explainer(whole, batch, head, query, call).explain();
}

}  // namespace qkv::cli
