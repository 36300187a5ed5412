// qkv bench: what this machine can do, and how much of that attention gets.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "qkv/commands.h"
#include "qkv/error.h"
#include "qkv/fold.h"
#include "qkv/machine.h"
#include "qkv/table.h"
#include "qkv/watch.h"
#include "reference/oracle.h"

namespace qkv::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  qkv bench                      (this machine's peak and bandwidth, then prefill and decode on usual shapes)
  qkv bench --threads 1,2 --json
  qkv bench --quick              (one long sequence, a few seconds)

Rates count 4 * D operations for every visible pair of query and key. "of peak" and "of read" are medians over samples of 20 ms
and more; each is compared with the machine's rate just before and after it, so that they hold on a shared machine too. A few
rows of every shape are compared with the oracle in long double before the clock starts.)";

struct Shape {
  const char* name;
  int batch, heads, key_heads, queries, keys, dim;
  bool causal;
  bool decode() const { return queries == 1; }
};
constexpr Shape kShapes[] = {{"512", 1, 8, 8, 512, 512, 64, false},
                             {"BERT 4x12x128", 4, 12, 12, 128, 128, 64, false},
                             {"2048", 1, 8, 8, 2048, 2048, 64, false},
                             {"2048 D=128", 1, 8, 8, 2048, 2048, 128, false},
                             {"2048 causal", 1, 8, 8, 2048, 2048, 64, true},
                             {"8192", 1, 8, 8, 8192, 8192, 64, false},
                             {"8192 causal", 1, 8, 8, 8192, 8192, 64, true},
                             {"decode 32 heads, 4096", 1, 32, 32, 1, 4096, 128, false},
                             {"decode 32/8 heads, 16384", 1, 32, 8, 1, 16384, 128, false}};

struct Options {
  std::vector<int> threads;
  std::string only;
  double seconds = 1;
  bool quick = false, json = false;
};

struct Result {
  const Shape* shape;
  int threads;
  std::vector<double> runs;        ///< seconds, rising
  std::vector<double> peak_share;  ///< of each sample against the peak around it, rising
  std::vector<double> read_share;  ///< the same of bandwidth, where keys and values are read once
  double operations, bytes;
  double worst_error;
  std::string path;
  double best() const { return runs.front(); }
};

double median(const std::vector<double>& rising) { return rising[rising.size() / 2]; }

/// What the machine could do in the same moments.
struct Yardstick {
  double peak = 0, bandwidth = 0;
  static Yardstick look(Executor& executor, bool bandwidth) {
    return {measure_peak(executor), bandwidth ? measure_bandwidth(executor) : 0};
  }
  void raise(const Yardstick& other) {
    peak = std::max(peak, other.peak);
    bandwidth = std::max(bandwidth, other.bandwidth);
  }
};

struct Tensors {
  explicit Tensors(const Shape& s)
      : query(size(s.heads, s.queries, s)), key(size(s.key_heads, s.keys, s)), value(key.size()), out(query.size()) {
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (auto* tensor : {&query, &key, &value})
      for (float& x : *tensor) x = uniform(generator);
    inputs = {.query = View<float>(query.data(), {s.batch, s.heads, s.queries, s.dim}),
              .key = View<float>(key.data(), {s.batch, s.key_heads, s.keys, s.dim}),
              .value = View<float>(value.data(), {s.batch, s.key_heads, s.keys, s.dim})};
    result = View<float>(out.data(), {s.batch, s.heads, s.queries, s.dim});
  }
  static size_t size(int heads, int length, const Shape& s) {
    return size_t(s.batch) * size_t(heads) * size_t(length) * size_t(s.dim);
  }

  std::vector<float> query, key, value, out;
  Inputs inputs;
  View<float> result;
};

/// The largest difference to the oracle in a few rows, relative to the largest value. Throws where that is no rounding error.
double check_rows(const Shape& s, const Attention& a, const Tensors& t) {
  const reference::Problem problem(a, t.inputs);
  double worst = 0, largest = 0;
  for (const int row : {0, s.queries / 3, s.queries - 1}) {
    const auto right = reference::oracle(problem, s.batch - 1, s.heads - 1, row);
    for (int e = 0; e < s.dim; ++e) {
      worst = std::max(worst, std::abs(right.out[size_t(e)] - double(t.result(s.batch - 1, s.heads - 1, row, e))));
      largest = std::max(largest, std::abs(right.out[size_t(e)]));
    }
  }
  if (!(worst <= 1e-5 * largest))
    throw Error(fmt::format("{}: the result is {:.1e} off the oracle, more than rounding explains", s.name, worst));
  return worst / largest;
}

/// Samples of at least 20 ms, with a look at the machine before and after each: on a shared machine the speed of everything
/// changes from second to second, the share does not.
void take_samples(Result& r, double seconds, Executor& executor, Yardstick& best, const std::function<void()>& run) {
  const bool decode = r.shape->decode();
  Yardstick before = Yardstick::look(executor, decode);
  double spent = 0;
  while (r.peak_share.size() < 5 || spent < seconds) {
    const size_t first = r.runs.size();
    double sample = 0;
    while (sample < 0.02) {
      const auto start = std::chrono::steady_clock::now();
      run();
      r.runs.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      sample += r.runs.back();
    }
    const Yardstick after = Yardstick::look(executor, decode);
    const double rate = double(r.runs.size() - first) / sample;
    r.peak_share.push_back(rate * r.operations / 1e9 / ((before.peak + after.peak) / 2));
    if (decode) r.read_share.push_back(rate * r.bytes / 1e9 / ((before.bandwidth + after.bandwidth) / 2));
    best.raise(after);
    before = after;
    spent += sample;
  }
  for (auto* v : {&r.runs, &r.peak_share, &r.read_share}) std::sort(v->begin(), v->end());
}

Result run_shape(const Shape& s, Executor& executor, double seconds, Yardstick& best) {
  Tensors t(s);
  Attention a;
  if (s.causal) a.visible(Causal{});
  Workspace workspace;
  const Call call{&executor, &workspace, {}};
  const Path path = find_path(a, t.inputs, call);
  Result r{&s, executor.concurrency(), {}, {}, {}, 0, 0, 0, path.kernel + " on " + path.instruction_set};
  r.operations = 4.0 * double(path.visible_pairs) * s.dim;
  r.bytes = 4.0 * double(t.key.size() + t.value.size());
  forward(a, t.inputs, {.out = t.result}, call);
  r.worst_error = check_rows(s, a, t);
  take_samples(r, seconds, executor, best, [&] { forward(a, t.inputs, {.out = t.result}, call); });
  return r;
}

nlohmann::json json_of(const Result& r) {
  const Shape& s = *r.shape;
  nlohmann::json j{
      {"name", s.name},
      {"shape",
       {{"batch", s.batch},
        {"heads", s.heads},
        {"key_heads", s.key_heads},
        {"queries", s.queries},
        {"keys", s.keys},
        {"head_dim", s.dim},
        {"causal", s.causal}}},
      {"threads", r.threads},
      {"path", r.path},
      {"runs", r.runs.size()},
      {"best_ms", r.best() * 1e3},
      {"median_ms", median(r.runs) * 1e3},
      {"slowest_ms", r.runs.back() * 1e3},
      {"best_gflops", r.operations / r.best() / 1e9},
      {"share_of_peak",
       {{"median", median(r.peak_share)}, {"lowest", r.peak_share.front()}, {"highest", r.peak_share.back()}}},
      {"relative_error_against_oracle", r.worst_error}};
  if (s.decode()) {
    j["best_gbytes_per_second"] = r.bytes / r.best() / 1e9;
    j["share_of_bandwidth"] = {
        {"median", median(r.read_share)}, {"lowest", r.read_share.front()}, {"highest", r.read_share.back()}};
  }
  return j;
}

void add_row(Table& table, const Result& r) {
  const bool decode = r.shape->decode();
  const auto percent = [](double share) { return fmt::format("{:.0f} %", 100 * share); };
  table.add({r.shape->name, r.path, fmt::format("{:.2f}", r.best() * 1e3), fmt::format("{:.2f}", median(r.runs) * 1e3),
             fmt::format("{:.1f}", r.operations / r.best() / 1e9), percent(median(r.peak_share)),
             fmt::format("{:.0f}-{:.0f}", 100 * r.peak_share.front(), 100 * r.peak_share.back()),
             decode ? fmt::format("{:.1f}", r.bytes / r.best() / 1e9) : "",
             decode ? percent(median(r.read_share)) : ""});
}

std::vector<const Shape*> chosen(const Options& o) {
  std::vector<const Shape*> shapes;
  for (const Shape& s : kShapes)
    if (o.quick ? std::string_view(s.name) == "8192 causal"
                : std::string_view(s.name).find(o.only) != std::string_view::npos)
      shapes.push_back(&s);
  if (shapes.empty()) throw OptionError(fmt::format("no shape has '{}' in its name", o.only));
  return shapes;
}

Answer bench(const Options& o, Progress& progress) {
  const Screen screen = screen_of_stdout(ColorWhen::kAuto);
  nlohmann::json report{
      {"processor", processor_name()}, {"compiler", compiler_name()}, {"results", nlohmann::json::array()}};
  std::string text;
  for (const int threads : o.threads) {
    ThreadPool pool(threads);
    Yardstick y = Yardstick::look(pool, true);
    std::vector<Result> results;
    for (const Shape* s : chosen(o)) {
      progress.begin(fmt::format("{} thread{}, {}", threads, threads == 1 ? "" : "s", s->name));
      results.push_back(run_shape(*s, pool, o.seconds, y));
    }
    if (o.json) {
      report["machine"].push_back(
          {{"threads", threads}, {"peak_gflops", y.peak}, {"bandwidth_gbytes_per_second", y.bandwidth}});
      for (const Result& r : results) report["results"].push_back(json_of(r));
      continue;
    }
    text += fold(fmt::format("{}, {} thread{}, {}: peak {:.1f} GFLOP/s (float32 FMA), {:.1f} GB/s read\n",
                             processor_name(), threads, threads == 1 ? "" : "s", compiler_name(), y.peak, y.bandwidth),
                 screen);
    Table table({{"shape", Side::kLeft, Narrow::kCut},
                 {"path", Side::kLeft, Narrow::kFirst},
                 {"best ms", Side::kRight},
                 {"median", Side::kRight, Narrow::kFirst},
                 {"GFLOP/s", Side::kRight, Narrow::kDrop},
                 {"of peak", Side::kRight},
                 {"spread", Side::kRight, Narrow::kFirst},
                 {"GB/s", Side::kRight, Narrow::kFirst},
                 {"of read", Side::kRight, Narrow::kDrop}});
    for (const Result& r : results) add_row(table, r);
    text += table.text(screen);
  }
  return {o.json ? report.dump(2) + "\n" : text};
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Measure this machine, and attention on it");
  command->footer(kExamples);
  command->add_option("--threads", o->threads, "How many threads, one or several numbers")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  command->add_option("--only", o->only, "Shapes with this in their name");
  command->add_option("--seconds", o->seconds, "Least time for each shape")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  command->add_flag("--quick", o->quick, "One long sequence only");
  command->add_flag("--json", o->json, "Machine-readable");
  command->callback([o, &run] {
    if (o->threads.empty()) o->threads = {default_executor().concurrency()};
    run = [o](Watch& watch) { return bench(*o, watch.progress()); };
  });
}

}  // namespace qkv::cli
