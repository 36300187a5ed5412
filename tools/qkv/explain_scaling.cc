// Why scores are divided by sqrt(D): what a softmax does with and without.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "qkv/explain.h"
#include "qkv/fold.h"
#include "qkv/see_json.h"
#include "qkv/table.h"

namespace qkv::cli {

namespace {

constexpr int kShownWeights = 4;

/// Normal random numbers by Box and Muller 1958; the same on every system, unlike those of <random>.
class Normal {
 public:
  explicit Normal(uint64_t seed) : bits_(seed) {}
  double operator()() {
    if (has_second_) return has_second_ = false, second_;
    const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * std::numbers::pi * uniform();
    second_ = radius * std::sin(angle);
    has_second_ = true;
    return radius * std::cos(angle);
  }

 private:
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  std::mt19937_64 bits_;
  double second_ = 0;
  bool has_second_ = false;
};

/// Of one row of scores, or their medians over many.
struct Facts {
  double largest = 0, entropy = 0, trace = 0;
  std::vector<double> weights;  ///< the largest first
};

Facts facts_of(std::vector<double> scores) {
  Facts f;
  f.largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& s : scores) sum += s = std::exp(s - f.largest);
  for (double& s : scores) {
    s /= sum;
    if (s > 0) f.entropy -= s * std::log(s);
    f.trace += s * (1 - s);  // of diag(w) - w w^T
  }
  std::sort(scores.rbegin(), scores.rend());
  f.weights = std::move(scores);
  return f;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

template <class F> double median_of(const std::vector<Facts>& all, F value) {
  std::vector<double> x(all.size());
  std::transform(all.begin(), all.end(), x.begin(), value);
  return median(std::move(x));
}

Facts medians(const std::vector<Facts>& all) {
  Facts m;
  m.largest = median_of(all, [](const Facts& f) { return f.largest; });
  m.entropy = median_of(all, [](const Facts& f) { return f.entropy; });
  m.trace = median_of(all, [](const Facts& f) { return f.trace; });
  for (size_t n = 0; n < all.front().weights.size(); ++n)
    m.weights.push_back(median_of(all, [n](const Facts& f) { return f.weights[n]; }));
  return m;
}

double variance(const std::vector<double>& x) {
  const double n = static_cast<double>(x.size()), mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  return std::accumulate(x.begin(), x.end(), 0.0, [&](double sum, double v) { return sum + (v - mean) * (v - mean); }) /
         n;
}

struct Measured {
  int64_t dim = 0;
  double variance = 0;
  Facts plain, scaled;
};

Measured measure(const ScalingOptions& o, int64_t dim, Progress& progress) {
  Normal normal(o.seed);
  std::vector<double> query(static_cast<size_t>(dim)), all;
  std::vector<Facts> plain, scaled;
  progress.begin(fmt::format("D = {}", dim), o.draws);
  for (int64_t draw = 0; draw < o.draws; ++draw, progress.advance()) {
    for (double& x : query) x = normal();
    std::vector<double> scores(static_cast<size_t>(o.keys));
    for (double& s : scores) {
      for (double x : query) s += x * normal();
      all.push_back(s);
    }
    plain.push_back(facts_of(scores));
    for (double& s : scores) s /= std::sqrt(static_cast<double>(dim));
    scaled.push_back(facts_of(std::move(scores)));
  }
  return {dim, variance(all), medians(plain), medians(scaled)};
}

std::string weight_text(double w) {
  if (w > 0.995) return fmt::format("{:.5f}", w);
  return w >= 0.005 ? fmt::format("{:.2f}", w) : fmt::format("{:.0e}", w);
}

std::string weights_text(const Facts& f) {
  std::string text;
  for (size_t n = 0; n < std::min<size_t>(kShownWeights, f.weights.size()); ++n)
    text += (n == 0 ? "" : " ") + weight_text(f.weights[n]);
  return text;
}

/// Into a pipe or a file in lines of 120 columns.
std::string what_that_means(int64_t keys, const Screen& screen) {
  const auto count = static_cast<double>(keys);
  return fold(
      fmt::format(
          "A dot product of D such terms has the variance D, so scores grow with sqrt(D). Divided by sqrt(D) their "
          "variance is 1 whatever D is. Without, one key takes everything, and the trace of the softmax's Jacobian, sum "
          "of w (1 - w), falls towards 0: then no gradient reaches q and k. {} keys alike would have the entropy {:.4f} and "
          "the trace {:.4f}.\n",
          keys, std::log(count), 1 - 1 / count),
      screen.terminal ? screen : Screen{.columns = 120, .terminal = true});
}

std::string text_of(const std::vector<Measured>& all, const ScalingOptions& o, const Screen& screen) {
  Table table({{"D", Side::kRight},
               {"scores", Side::kLeft},
               {"variance", Side::kRight, Narrow::kDrop},
               {"largest", Side::kRight, Narrow::kDrop},
               {"weights, the largest first", Side::kLeft, Narrow::kFirst},
               {"entropy", Side::kRight, Narrow::kFirst},
               {"Jacobian trace", Side::kRight}});
  const auto row = [&](const std::string& dim, const char* scores, double variance, const Facts& f) {
    table.add({dim, scores, fmt::format("{:.2f}", variance), fmt::format("{:.2f}", f.largest), weights_text(f),
               fmt::format("{:.4f}", f.entropy),
               f.trace < 1e-3 ? fmt::format("{:.1e}", f.trace) : fmt::format("{:.4f}", f.trace)});
  };
  for (const Measured& m : all) {
    row(std::to_string(m.dim), "q k", m.variance, m.plain);
    row("", "q k / sqrt(D)", m.variance / static_cast<double>(m.dim), m.scaled);
  }
  return fold(
             fmt::format("Queries and keys of independent normal numbers, {} keys for each of {} queries; medians.\n\n",
                         o.keys, o.draws),
             screen) +
         table.text(screen) + "\n" + what_that_means(o.keys, screen);
}

nlohmann::json json_of(const Facts& f) {
  return {{"largest", f.largest}, {"weights", f.weights}, {"entropy", f.entropy}, {"jacobian_trace", f.trace}};
}

}  // namespace

std::string explain_scaling(const ScalingOptions& o, Progress& progress) {
  std::vector<Measured> all;
  for (int64_t dim : o.dims) all.push_back(measure(o, dim, progress));
  if (!o.json) return text_of(all, o, screen_of_stdout(ColorWhen::kAuto));
  nlohmann::json json = {{"keys", o.keys}, {"draws", o.draws}, {"seed", o.seed}, {"dims", nlohmann::json::array()}};
  for (const Measured& m : all) {
    json["dims"].push_back({{"dim", m.dim},
                            {"variance", m.variance},
                            {"scaled_variance", m.variance / static_cast<double>(m.dim)},
                            {"plain", json_of(m.plain)},
                            {"scaled", json_of(m.scaled)}});
  }
  return qkv::cli::text_of(json);
}

}  // namespace qkv::cli
