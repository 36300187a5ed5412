#include "qkv/explain_gradients.h"

#include <cmath>
#include <numeric>

#include "core/parallel.h"
#include "qkv/backward.h"
#include "qkv/numbers.h"
#include "qkv/rules.h"
#include "qkv/views.h"
#include "reference/gradients.h"

namespace qkv::cli {

namespace {

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double dot_of_sizes(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t n = 0; n < a.size(); ++n) sum += std::abs(a[n] * b[n]);
  return sum;
}

double largest(const std::vector<double>& x) {
  double most = 0;
  for (double v : x) most = std::max(most, std::abs(v));
  return most;
}

class Differentiator {
 public:
  Differentiator(Explanation& e, const Problem& part, const reference::Problem& reference, const Call& call)
      : e_(e), part_(part), reference_(reference), call_(call), type_(part.inputs.query.dtype) {}

  void add() {
    g_.dout = as_doubles(part_.dout, 0, 0, 0);
    if (part_.dlse) g_.dlse = element(part_.dlse, 0, 0, 0, 0);
    g_.delta = dot(g_.dout, e_.out) - g_.dlse.value_or(0);
    g_.query.resize(e_.query_vector.size());
    for (const KeySteps& k : e_.keys) g_.of.push_back(of_key(k));
    for (const Keyless& k : e_.keyless) g_.keyless.push_back(e_.sum == 0 ? 0 : -k.exponential / e_.sum * g_.delta);
    compare();
    e_.gradients = std::move(g_);
  }

 private:
  bool sees(const KeySteps& k) const { return k.rule == kVisible && e_.sum != 0; }

  KeyGradients of_key(const KeySteps& k) {
    stop_point(call_.stop);
    const std::vector<double> zeros(g_.query.size());
    KeyGradients of{0, std::vector<double>(k.modified.size() + 1), zeros, std::vector<double>(g_.dout.size())};
    if (!sees(k)) return of;
    of.by_weight = dot(g_.dout, k.value);
    of.by_score.back() = k.weight * (of.by_weight - g_.delta);
    for (size_t m = k.modified.size(); m-- > 0;) of.by_score[m] = of.by_score[m + 1] * derivative(k, m);
    const double raw = of.by_score.front();
    for (size_t d = 0; d < g_.query.size(); ++d) g_.query[d] += e_.scale * raw * k.key_vector[d];
    of.key = times(e_.scale * raw, e_.query_vector);
    of.value = times(k.weight, g_.dout);
    return of;
  }

  /// Of modifier m, by the score that it is given.
  double derivative(const KeySteps& k, size_t m) const {
    return double(reference_.modifiers()[m]->derive(k.before(m), reference_.site(0, 0, 0, k.key)).by_score);
  }

  // ---- the library ----

  void compare() {
    const Sizes& s = part_.sizes;
    Array dq(type_, {1, 1, 1, s.dim}), dk(type_, {1, 1, s.keys, s.dim}), dv(type_, {1, 1, s.keys, s.value_dim});
    by_library(dq.view(), dk.view(), dv.view());
    const reference::LossGradients loss{
        [&](int64_t, int64_t, int64_t, int64_t d) { return g_.dout[static_cast<size_t>(d)]; },
        [&](int64_t, int64_t, int64_t) { return g_.dlse.value_or(0); },
        [&](int64_t, int64_t, int64_t, int64_t d) { return out_[static_cast<size_t>(d)]; }};
    const bool wide = type_ == DType::kFloat64;
    const reference::GradientAnswer plain = wide ? reference::gradients<double>(reference_, part_.inputs, loss)
                                                 : reference::gradients<float>(reference_, part_.inputs, loss),
                                    exact = reference::gradients<long double>(reference_, part_.inputs,
                                                                              {loss.dout, loss.dlse, {}});
    const auto add = [&](const char* what, std::vector<double> steps, const Array& library,
                         const reference::RowGrid& rough, const reference::RowGrid& right, double size) {
      e_.agreements.push_back(agree(
          what, "backward", {std::move(steps), numbers(library), rounded(rough.numbers), right.numbers, type_, size}));
    };
    add("dq", g_.query, dq, plain.dquery, exact.dquery, size_of_query());
    add("dk", of_keys(&KeyGradients::key, s.dim), dk, plain.dkey, exact.dkey, size_of_keys());
    add("dv", of_keys(&KeyGradients::value, s.value_dim), dv, plain.dvalue, exact.dvalue, 0);
  }

  void by_library(View<void> dq, View<void> dk, View<void> dv) {
    const DType sums = sum_type(part_);
    Array out(type_, {1, 1, 1, part_.sizes.value_dim}), row_max(sums, {1, 1, 1}), row_sum(sums, {1, 1, 1});
    Outputs outputs;
    outputs.out = out.view();
    outputs.row_max = row_max.view();
    outputs.row_sum = row_sum.view();
    forward(part_.attention, part_.inputs, outputs, call_);
    out_ = numbers(out);
    Upstream up{.out = out.view(), .dout = part_.dout, .dlse = part_.dlse};
    up.row_max = row_max.view();
    up.row_sum = row_sum.view();
    backward(part_.attention, part_.inputs, up, {.dquery = dq, .dkey = dk, .dvalue = dv}, call_);
  }

  /// Row by row.
  static std::vector<double> numbers(const Array& x) {
    std::vector<double> all;
    for (int64_t j = 0; j < x.view().shape[2]; ++j) {
      const std::vector<double> row = as_doubles(x.view(), 0, 0, j);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  /// As the library rounds its sums once to the type.
  std::vector<double> rounded(const std::vector<double>& x) const {
    Array a(DType::kFloat64, {1, 1, 1, static_cast<int64_t>(x.size())});
    std::copy(x.begin(), x.end(), static_cast<double*>(a.data()));
    return numbers(to_type(a.view(), type_));
  }
  /// One after the other; zeros of columns without a key.
  std::vector<double> of_keys(std::vector<double> KeyGradients::*which, int64_t width) const {
    std::vector<double> all(static_cast<size_t>(part_.sizes.keys * width));
    for (size_t n = 0; n < e_.keys.size(); ++n)
      std::copy((g_.of[n].*which).begin(), (g_.of[n].*which).end(), all.begin() + e_.keys[n].key * width);
    return all;
  }

  /// dP and delta nearly cancel where one key takes all: by how much dS may be off, in units of a rounding.
  double size_of_score(size_t n) const {
    const KeySteps& k = e_.keys[n];
    if (!sees(k)) return 0;
    double size =
        k.weight * (dot_of_sizes(g_.dout, k.value) + dot_of_sizes(g_.dout, e_.out) + std::abs(g_.dlse.value_or(0)));
    for (size_t m = 0; m < k.modified.size(); ++m) size *= std::abs(derivative(k, m));
    return size * std::abs(e_.scale);
  }
  double size_of_query() const {
    double size = 0;
    for (size_t n = 0; n < e_.keys.size(); ++n) size += size_of_score(n) * largest(e_.keys[n].key_vector);
    return size;
  }
  double size_of_keys() const {
    double size = 0;
    for (size_t n = 0; n < e_.keys.size(); ++n) size = std::max(size, size_of_score(n));
    return size * largest(e_.query_vector);
  }

  Explanation& e_;
  const Problem& part_;
  const reference::Problem& reference_;
  const Call& call_;
  DType type_;
  QueryGradients g_;
  std::vector<double> out_;  // as forward() stored it
};

}  // namespace

void add_gradients(Explanation& e, const Problem& part, const reference::Problem& reference, const Call& call) {
  Differentiator(e, part, reference, call).add();
}

}  // namespace qkv::cli
