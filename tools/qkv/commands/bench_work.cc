#include "qkv/commands/bench_work.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <tuple>

#include <fmt/format.h>

#include "qkv/error.h"
#include "reference/gradients.h"
#include "reference/oracle.h"

namespace qkv::cli {
namespace {

/// That of examples/own_policies.h: what a modifier of one's own costs.
struct Decay {
  static constexpr std::string_view kName = "decay";
  float rate = 0;
  auto operator()(auto score, Site at) const { return score - rate * float(std::abs(at.query - at.key)); }
  auto fields() { return std::tie(rate); }
};

constexpr double kDropout = 0.1, kMostError = 1e-5;

constexpr Shape kShapes[] = {
    {"512", 1, 8, 8, 512, 512, 64},
    {"BERT 4x12x128", 4, 12, 12, 128, 128, 64},
    {"2048", 1, 8, 8, 2048, 2048, 64},
    {"2048 D=128", 1, 8, 8, 2048, 2048, 128},
    {"2048 causal", 1, 8, 8, 2048, 2048, 64, true},
    {"8192", 1, 8, 8, 8192, 8192, 64},
    {"8192 causal", 1, 8, 8, 8192, 8192, 64, true},
    {"decode 32 heads, 4096", 1, 32, 32, 1, 4096, 128},
    {"decode 32/8 heads, 16384", 1, 32, 8, 1, 16384, 128},
    {"backward BERT 4x12x128", 4, 12, 12, 128, 128, 64, false, Work::kBackward},
    {"backward 2048", 1, 8, 8, 2048, 2048, 64, false, Work::kBackward},
    {"backward 2048 D=128", 1, 8, 8, 2048, 2048, 128, false, Work::kBackward},
    {"backward 2048 causal", 1, 8, 8, 2048, 2048, 64, true, Work::kBackward},
    {"backward 8192, 1 head", 1, 1, 1, 8192, 8192, 64, false, Work::kBackward},
    {"training 2048", 1, 8, 8, 2048, 2048, 64, false, Work::kTraining},
    {"training 2048 dropout", 1, 8, 8, 2048, 2048, 64, false, Work::kTraining, Extra::kDropout},
    {"training 2048 own modifier", 1, 8, 8, 2048, 2048, 64, false, Work::kTraining, Extra::kOwnModifier},
    {"training 2048 bias", 1, 8, 8, 2048, 2048, 64, false, Work::kTraining, Extra::kBias},
    {"training 2048 bias, its gradient", 1, 8, 8, 2048, 2048, 64, false, Work::kTraining, Extra::kBiasWithGradient}};

/// The largest difference and the largest value of what has been seen.
struct Difference {
  double worst = 0, largest = 0;
  void see(double x, double right) {
    worst = std::max(worst, std::abs(x - right));
    largest = std::max(largest, std::abs(right));
  }
  double relative(const Shape& s, const char* what) const {
    if (!(worst <= kMostError * largest))
      throw Error(fmt::format("{}: {} is {:.1e} off the oracle, more than rounding explains", s.name, what, worst));
    return worst / largest;
  }
};

}  // namespace

std::span<const Shape> bench_shapes() { return kShapes; }

Bench::Bench(const Shape& s, const Call& call) : shape_(s), call_(call) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto make = [&](std::vector<float>& data, int64_t a, int64_t b, int64_t c, int64_t d) {
    data.resize(size_t(a * b * c * d));
    for (float& x : data) x = uniform(generator);
    return View<float>(data.data(), {a, b, c, d});
  };
  inputs_ = {.query = make(query_, s.batch, s.heads, s.queries, s.dim),
             .key = make(key_, s.batch, s.key_heads, s.keys, s.dim),
             .value = make(value_, s.batch, s.key_heads, s.keys, s.dim)};
  outputs_.out = make(out_, s.batch, s.heads, s.queries, s.dim);
  if (s.causal) attention_.visible(Causal{});
  if (s.extra == Extra::kOwnModifier) attention_.score(Decay{0.01f});
  if (s.extra == Extra::kDropout) attention_.dropout(kDropout), inputs_.dropout_seed = 1;
  const bool bias = s.extra == Extra::kBias || s.extra == Extra::kBiasWithGradient;
  if (bias) attention_.score(Bias{}), inputs_.bias = make(bias_, 1, 1, s.queries, s.keys);
  path_ = find_path(attention_, inputs_, call);
  if (s.work == Work::kForward) return;
  row_max_.resize(size_t(s.batch) * size_t(s.heads) * size_t(s.queries));
  row_sum_.resize(row_max_.size());
  outputs_.row_max = View<float>(row_max_.data(), {s.batch, s.heads, s.queries});
  outputs_.row_sum = View<float>(row_sum_.data(), {s.batch, s.heads, s.queries});
  make(dout_, s.batch, s.heads, s.queries, s.dim);
  gradients_ = {.dquery = make(dquery_, s.batch, s.heads, s.queries, s.dim),
                .dkey = make(dkey_, s.batch, s.key_heads, s.keys, s.dim),
                .dvalue = make(dvalue_, s.batch, s.key_heads, s.keys, s.dim)};
  if (s.extra == Extra::kBiasWithGradient) gradients_.dbias = make(dbias_, 1, 1, s.queries, s.keys);
}

double Bench::operations() const {
  const double per_dim[] = {4, 10, 14};
  return per_dim[size_t(shape_.work)] * double(path_.visible_pairs) * shape_.dim;
}

double Bench::bytes() const { return sizeof(float) * double(key_.size() + value_.size()); }

void Bench::run_forward() { forward(attention_, inputs_, outputs_, call_); }

void Bench::run_backward(View<const void> dout) {
  backward(attention_, inputs_,
           {.out = outputs_.out, .dout = dout, .row_max = outputs_.row_max, .row_sum = outputs_.row_sum}, gradients_,
           call_);
}

void Bench::run() {
  if (shape_.work != Work::kBackward) run_forward();
  if (shape_.work != Work::kForward) run_backward(View<float>(dout_.data(), outputs_.out));
}

double Bench::check() {
  run_forward();
  const double error = error_of_rows();
  return shape_.work == Work::kForward ? error : std::max(error, error_of_gradients());
}

double Bench::error_of_rows() const {
  const Shape& s = shape_;
  const reference::Problem problem(attention_, inputs_);
  const View<float> out = outputs_.out.as<float>();
  Difference error;
  for (const int row : {0, s.queries / 3, s.queries - 1}) {
    const auto right = reference::oracle(problem, s.batch - 1, s.heads - 1, row);
    for (int e = 0; e < s.dim; ++e) error.see(double(out(s.batch - 1, s.heads - 1, row, e)), right.out[size_t(e)]);
  }
  return error.relative(s, "out");
}

/// Of a loss by few rows, so that the oracle need not walk the others; backward() walks all. Not by row 0: where it sees one key,
/// its gradients by scores are 0, and what is computed is rounding alone.
double Bench::error_of_gradients() {
  const Shape& s = shape_;
  const int64_t batch = s.batch - 1, head = s.heads - 1, key_head = s.key_heads - 1;
  std::vector<float> few(dout_.size());
  const View<float> all(dout_.data(), outputs_.out), dout(few.data(), outputs_.out);
  const int rows[] = {s.queries / 3, s.queries / 2, s.queries - 1};
  for (const int row : rows)
    for (int e = 0; e < s.dim; ++e) dout(batch, head, row, e) = all(batch, head, row, e);
  run_backward(dout);

  const reference::Problem problem(attention_, inputs_);
  const reference::GradientAnswer right = reference::gradients<long double>(
      problem, inputs_,
      {.dout = [&](int64_t b, int64_t h, int64_t i, int64_t e) { return double(dout(b, h, i, e)); },
       .dlse = [](int64_t, int64_t, int64_t) { return 0.0; },
       .rows =
           [&](int64_t b, int64_t h, int64_t i) {
             return b == batch && h == head && std::ranges::find(rows, int(i)) != std::end(rows);
           }});
  const auto error_of = [&](const char* name, View<void> got, const reference::RowGrid& expected, int64_t in_head) {
    Difference error;
    const View<float> x = got.as<float>();
    for (int64_t i = 0; i < x.shape[2]; ++i)
      for (int64_t e = 0; e < x.shape[3]; ++e)
        error.see(double(x(batch, in_head, i, e)), expected(batch, in_head, i, e));
    return error.relative(s, name);
  };
  double worst = std::max({error_of("dquery", gradients_.dquery, right.dquery, head),
                           error_of("dkey", gradients_.dkey, right.dkey, key_head),
                           error_of("dvalue", gradients_.dvalue, right.dvalue, key_head)});
  if (!dbias_.empty()) {
    Difference error;
    for (size_t n = 0; n < dbias_.size(); ++n) error.see(double(dbias_[n]), right.by_tensor.at("bias")[n]);
    worst = std::max(worst, error.relative(s, "dbias"));
  }
  return worst;
}

}  // namespace qkv::cli
