// qkv bench: what this machine can do, and how much of that attention gets.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "qkv/commands/bench_work.h"
#include "qkv/commands/commands.h"
#include "qkv/commands/machine.h"
#include "qkv/commands/watch.h"
#include "qkv/error.h"
#include "qkv/fold.h"
#include "qkv/table.h"

namespace qkv::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  qkv bench                      (this machine's peak and bandwidth, then attention on usual shapes)
  qkv bench --only backward      (gradients; "training" is forward and backward)
  qkv bench --threads 1,2 --json
  qkv bench --quick              (one long sequence, a few seconds)

Rates count 4 * D operations for every visible pair of query and key, and 10 * D for its gradients. GFLOP/s are those of the best
sample. "of peak" and "of read" are medians over samples of 20 ms and more; each is compared with the machine's rate just before and after it, so that they hold on
a shared machine too. A few rows of every shape, and the gradients of a loss by them, are compared with the oracle in long double
before the clock starts.)";

constexpr const char* kWorkNames[] = {"forward", "backward", "training"};

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
  Workspace workspace;
  const Call call{&executor, &workspace, {}};
  Bench bench(s, call);
  const char* kernel = s.work == Work::kForward ? bench.path().kernel.c_str() : kWorkNames[size_t(s.work)];
  Result r{
      &s, executor.concurrency(), {}, {}, {}, 0, 0, 0, fmt::format("{} on {}", kernel, bench.path().instruction_set)};
  r.operations = bench.operations();
  r.bytes = bench.bytes();
  r.worst_error = bench.check();
  take_samples(r, seconds, executor, best, [&] { bench.run(); });
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
      {"work", kWorkNames[size_t(s.work)]},
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
  for (const Shape& s : bench_shapes())
    if (o.quick ? std::string_view(s.name) == "8192 causal"
                : std::string_view(s.name).find(o.only) != std::string_view::npos)
      shapes.push_back(&s);
  if (shapes.empty()) throw OptionError(fmt::format("no shape has '{}' in its name", o.only));
  return shapes;
}

/// What an extra adds to forward and backward of the shape without it, where both were run: one line each.
std::string costs_of_extras(const std::vector<Result>& results) {
  struct Cost {
    Extra with, without;
    const char* what;
  };
  constexpr Cost kCosts[] = {{Extra::kDropout, Extra::kNone, "Dropout"},
                             {Extra::kOwnModifier, Extra::kNone, "A modifier of one's own"},
                             {Extra::kBiasWithGradient, Extra::kBias, "The gradient of a bias"}};
  std::string text;
  for (const Cost& cost : kCosts)
    for (const Result& with : results)
      for (const Result& without : results) {
        if (with.shape->work != Work::kTraining || without.shape->work != Work::kTraining ||
            with.shape->extra != cost.with || without.shape->extra != cost.without)
          continue;
        const double longer = median(without.peak_share) / median(with.peak_share) - 1;
        text += fmt::format("{} adds {:.0f} % to forward and backward of \"{}\".\n", cost.what, 100 * longer,
                            without.shape->name);
      }
  return text;
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
    text += table.text(screen) + fold(costs_of_extras(results), screen);
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
