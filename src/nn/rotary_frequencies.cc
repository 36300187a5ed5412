// Rotary: how fast each pair turns, with every scaling.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/format.h"
#include "kernels/rotary.h"
#include "qkv/positions.h"

namespace qkv {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;
constexpr double kMostFrequency = 2;  // so that angles of legal positions stay below kernels::kMostAngle

struct Turns {
  std::vector<double> frequencies;
  double attention_factor = 1;
};

void expect_positive(const char* name, double value) {
  if (!(value > 0) || !std::isfinite(value)) option_error("Rotary: {} is {}, expected a number above 0", name, value);
}
void expect_length(int64_t original_length) {
  if (original_length < 1)
    option_error("Rotary: original_length is {}, expected 1 or more: the length that the model was trained with",
                 original_length);
}

std::vector<double> plain(int64_t dim, double base) {
  std::vector<double> frequencies;
  frequencies.reserve(size_t(dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) frequencies.push_back(std::pow(base, -2.0 * double(i) / double(dim)));
  return frequencies;
}

/// The base that slows the slowest pair down by `factor` and leaves the fastest as it is.
double stretched_base(const RotaryOptions& o, double factor) {
  if (o.dim == 2)
    option_error("Rotary: NTK scaling needs a dim of 4 or more, dim is 2; the only pair would be kept as it is");
  return o.base * std::pow(factor, double(o.dim) / double(o.dim - 2));
}

Turns turns(const RotaryOptions& o, std::monostate, int64_t) { return {plain(o.dim, o.base)}; }

Turns turns(const RotaryOptions& o, const LinearScaling& s, int64_t) {
  expect_positive("factor", s.factor);
  Turns t{plain(o.dim, o.base)};
  for (double& f : t.frequencies) f /= s.factor;
  return t;
}

Turns turns(const RotaryOptions& o, const NtkScaling& s, int64_t) {
  expect_positive("factor", s.factor);
  return {plain(o.dim, stretched_base(o, s.factor))};
}

Turns turns(const RotaryOptions& o, const DynamicNtkScaling& s, int64_t text_length) {
  expect_positive("factor", s.factor);
  expect_length(s.original_length);
  const double length = double(std::max(text_length, s.original_length)) / double(s.original_length);
  return {plain(o.dim, stretched_base(o, s.factor * length - (s.factor - 1)))};
}

double magnitude(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

double attention_factor(const YarnScaling& s) {
  if (s.attention_factor) return *s.attention_factor;
  if (s.mscale && s.mscale_all_dim && *s.mscale != 0 && *s.mscale_all_dim != 0)
    return magnitude(s.factor, *s.mscale) / magnitude(s.factor, *s.mscale_all_dim);
  return magnitude(s.factor, 1);
}

Turns turns(const RotaryOptions& o, const YarnScaling& s, int64_t) {
  expect_positive("factor", s.factor);
  expect_positive("beta_fast", s.beta_fast);
  expect_positive("beta_slow", s.beta_slow);
  expect_length(s.original_length);
  if (o.base == 1) option_error("Rotary: YaRN needs a base above 1, base is 1: all pairs would turn alike");
  // The pair, not rounded, that turns so many times within the original length.
  const auto pair_of = [&](double rotations) {
    return double(o.dim) * std::log(double(s.original_length) / (rotations * kTurn)) / (2 * std::log(o.base));
  };
  double low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
  if (s.ramp == YarnScaling::Ramp::kWholePairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, double(o.dim - 1));
  if (low == high) high += 0.001;  // a step, not 0 / 0
  Turns t{plain(o.dim, o.base), attention_factor(s)};
  for (size_t i = 0; i < t.frequencies.size(); ++i) {
    const double slow = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    t.frequencies[i] = t.frequencies[i] / s.factor * slow + t.frequencies[i] * (1 - slow);
  }
  return t;
}

Turns turns(const RotaryOptions& o, const Llama3Scaling& s, int64_t) {
  expect_positive("factor", s.factor);
  expect_positive("low_frequency_factor", s.low_frequency_factor);
  expect_positive("high_frequency_factor", s.high_frequency_factor);
  expect_length(s.original_length);
  if (!(s.low_frequency_factor < s.high_frequency_factor))
    option_error("Rotary: low_frequency_factor is {} and high_frequency_factor {}; the first must be smaller",
                 s.low_frequency_factor, s.high_frequency_factor);
  const auto original = double(s.original_length);
  Turns t{plain(o.dim, o.base)};
  for (double& f : t.frequencies) {
    const double wave = kTurn / f;
    if (wave > original / s.low_frequency_factor) {
      f /= s.factor;
    } else if (wave >= original / s.high_frequency_factor) {
      const double kept =
          (original / wave - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
      f = (1 - kept) * f / s.factor + kept * f;
    }
  }
  return t;
}

double attention_factor(const LongRopeScaling& s) {
  if (s.attention_factor) return *s.attention_factor;
  if (s.factor <= 1) return 1;
  if (s.original_length < 2)
    option_error("Rotary: original_length is {}, expected 2 or more: its logarithm divides", s.original_length);
  return std::sqrt(1 + std::log(s.factor) / std::log(double(s.original_length)));
}

Turns turns(const RotaryOptions& o, const LongRopeScaling& s, int64_t text_length) {
  expect_positive("factor", s.factor);
  expect_length(s.original_length);
  for (const auto* factors : {&s.short_factors, &s.long_factors}) {
    const char* name = factors == &s.short_factors ? "short_factors" : "long_factors";
    if (int64_t(factors->size()) != o.dim / 2)
      option_error("Rotary: {} has {} numbers, expected {}: one for each pair of dim {}", name, factors->size(),
                   o.dim / 2, o.dim);
    for (const double factor : *factors) expect_positive(name, factor);
  }
  const auto& factors = text_length > s.original_length ? s.long_factors : s.short_factors;
  Turns t{plain(o.dim, o.base), attention_factor(s)};
  for (size_t i = 0; i < t.frequencies.size(); ++i) t.frequencies[i] /= factors[i];
  return t;
}

void check_options(const RotaryOptions& o, std::optional<int64_t> text_length) {
  if (o.dim < 0 || o.dim % 2 != 0 || o.dim > int64_t{1} << 20)
    option_error("Rotary: dim is {}, expected an even number, 0 to 2^20: elements turn in pairs", o.dim);
  if (!(o.base >= 1) || !std::isfinite(o.base)) option_error("Rotary: base is {}, expected 1 or more", o.base);
  if (text_length && *text_length < 0)
    option_error("Rotary: text_length is {}, expected 0 or more tokens", *text_length);
}

}  // namespace

Rotary::Rotary(const RotaryOptions& options, std::optional<int64_t> text_length) : pairs_(options.pairs) {
  static_assert(kMostFrequency * 0x1p30 <= kernels::kMostAngle);
  check_options(options, text_length);
  if (options.dim == 0) return;
  Turns t = std::visit([&](const auto& scaling) { return turns(options, scaling, text_length.value_or(0)); },
                       options.scaling);
  for (const double f : t.frequencies)
    if (!(f >= 0 && f <= kMostFrequency))
      option_error("Rotary: a pair turns by {} a position, expected 0 to 2; look at base and factors", f);
  if (!std::isfinite(t.attention_factor))
    option_error("Rotary: the attention factor is {}, expected a finite number", t.attention_factor);
  frequencies_ = std::move(t.frequencies);
  attention_factor_ = t.attention_factor;
}

}  // namespace qkv
