#include "qkv/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/elements.h"
#include "nn/arguments.h"
#include "nn/parts.h"
#include "qkv/dropout.h"

namespace qkv {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A number of [0, 1) with 53 bits.
double draw(uint64_t seed, int64_t step, int64_t sequence) {
  constexpr uint64_t kOwn = 0x53414D504C455221;  // dropout of the same seed has other bits
  const auto bits =
      philox({uint32_t(step), uint32_t(uint64_t(step) >> 32), uint32_t(sequence), uint32_t(uint64_t(sequence) >> 32)},
             seed ^ kOwn);
  return double((uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53;
}

void load_row(View<const void> logits, int64_t row, std::span<double> to) {
  load(logits, logits.offset(row, 0), logits.strides[1], int64_t(to.size()), to.data());
}

/// Throws where nothing can be drawn.
void check_row(std::span<const double> logits, int64_t row) {
  double most = -kInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == kInfinity)
      option_error("Sampler: logits[{}, {}] is {}, expected finite numbers or -inf", row, i, logits[i]);
    most = std::max(most, logits[i]);
  }
  if (most == -kInfinity) option_error("Sampler: row {} of logits has no number above -inf; leave one token", row);
}

/// One row: logits, which become shares, and tokens that are left, the first `left` of `order`.
class Shares {
 public:
  Shares(std::span<double> logits, std::span<int32_t> order) : shares_(logits), order_(order), left_(order.size()) {
    for (size_t i = 0; i < order.size(); ++i) order[i] = int32_t(i);
  }

  int32_t likeliest() const { return int32_t(std::ranges::max_element(shares_) - shares_.begin()); }

  void keep_top_k(size_t k) {
    if (k >= left_) return;
    std::nth_element(order_.begin(), order_.begin() + int64_t(k) - 1, order_.begin() + int64_t(left_), likelier());
    left_ = k;
    std::sort(order_.begin(), order_.begin() + int64_t(left_));
  }

  /// exp((logit - largest) / temperature); their sum.
  double weigh(double temperature) {
    const double most = shares_[size_t(likeliest())];
    double sum = 0;
    for (const int32_t token : kept()) {
      double& share = shares_[size_t(token)];
      share = share == most ? 1 : std::exp((share - most) / temperature);
      sum += share;
    }
    return sum;
  }

  /// The likeliest tokens, until their shares reach p of the sum.
  void keep_top_p(double p, double sum) {
    const auto less = [by = likelier()](int32_t a, int32_t b) { return by(b, a); };
    const auto first = order_.begin();
    auto last = first + int64_t(left_);
    std::make_heap(first, last, less);
    double reached = 0;
    while (last != first && reached < p * sum) {
      std::pop_heap(first, last, less);
      reached += shares_[size_t(*--last)];
    }
    const auto end = first + int64_t(left_);
    left_ = size_t(std::move(last, end, first) - first);
    std::sort(first, first + int64_t(left_));
  }

  /// The token at u of the sum of the shares that are left.
  int32_t at(double u) const {
    double sum = 0;
    for (const int32_t token : kept()) sum += shares_[size_t(token)];
    double reached = 0;
    int32_t found = kept()[0];
    for (const int32_t token : kept()) {
      if (shares_[size_t(token)] == 0) continue;
      found = token;
      reached += shares_[size_t(token)];
      if (reached > u * sum) break;
    }
    return found;
  }

 private:
  std::span<const int32_t> kept() const { return order_.first(left_); }
  struct Likelier {
    const double* of;
    bool operator()(int32_t a, int32_t b) const { return of[a] > of[b] || (of[a] == of[b] && a < b); }
  };
  Likelier likelier() const { return {shares_.data()}; }
  std::span<double> shares_;
  std::span<int32_t> order_;
  size_t left_;
};

int32_t sample(const SamplingOptions& o, Shares row, double u) {
  if (o.temperature == 0) return row.likeliest();
  if (o.top_k > 0) row.keep_top_k(size_t(o.top_k));
  const double sum = row.weigh(o.temperature);
  if (o.top_p < 1) row.keep_top_p(o.top_p, sum);
  return row.at(u);
}

}  // namespace

Sampler::Sampler(const SamplingOptions& o) : options_(o) {
  if (!(o.temperature >= 0) || std::isinf(o.temperature))
    option_error("Sampler: temperature is {}, expected a finite number of 0 or more", o.temperature);
  if (o.top_k < 0) option_error("Sampler: top_k is {}, expected 0 (all) or more", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) option_error("Sampler: top_p is {}, expected more than 0 and at most 1", o.top_p);
}

void Sampler::operator()(View<const void> logits, const SamplingPlace& place, View<int32_t> tokens,
                         const Call& call) const {
  arguments::floating("Sampler", "logits", logits);
  if (logits.rank != 2 || logits.shape[1] < 1 || logits.shape[1] > std::numeric_limits<int32_t>::max())
    shape_error("Sampler: logits is {}, expected {{B, classes}} with 1 to 2^31 - 1 classes", logits);
  arguments::shape("Sampler", "tokens", tokens, {logits.shape[0]});
  const auto classes = size_t(logits.shape[1]);
  const auto each_row = [&](const auto& f) {
    nn::parallel_with_scratch(
        call, logits.shape[0], classes * (sizeof(double) + sizeof(int32_t)), [&](int64_t row, void* scratch) {
          auto* numbers = static_cast<double*>(scratch);
          load_row(logits, row, {numbers, classes});
          f(row, std::span(numbers, classes), std::span(reinterpret_cast<int32_t*>(numbers + classes), classes));
        });
  };
  each_row([](int64_t row, std::span<double> numbers, std::span<int32_t>) { check_row(numbers, row); });
  each_row([&](int64_t row, std::span<double> numbers, std::span<int32_t> order) {
    tokens(row) = sample(options_, Shares(numbers, order), draw(options_.seed, place.step, place.sequence + row));
  });
}

}  // namespace qkv
