// qkv attend: computes attention of tensors in files.
#include <chrono>
#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "io/output_file.h"
#include "qkv/commands/choice.h"
#include "qkv/commands/commands.h"
#include "qkv/commands/machine.h"
#include "qkv/commands/options.h"
#include "qkv/commands/results.h"
#include "qkv/commands/watch.h"
#include "qkv/error.h"
#include "qkv/observers.h"
#include "qkv/see_json.h"

namespace qkv::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  qkv attend --q q.npy --k k.npy --v v.npy -o out.npz --causal --lse
  qkv attend model.npz -o out.npz --stats --top 4      (names q, k, v, or layer0.q, layer0.k, ... of many layers)
  qkv attend model.safetensors --layer 3 -o out.npz --attention "causal window:255,0 align:bottom_right | softcap:30 | softmax"
  qkv attend --x tokens.npy --wq wq.npy --wk wk.npy --wv wv.npy --wo wo.npy --heads 8 -o out.npz
  qkv attend --q q.npy --k kv.npz:k --v kv.npz:v -o out.npy --lengths 13,22,4 --window 7,0 --align top_left

Shapes: q {B, H, L, D}, k {B, Hkv, S, D}, v {B, Hkv, S, Dv}; {H, L, D} and {L, D} are one batch entry.
Results: out, and where asked for lse, weights, received, entropy, effective_keys, max_weight, max_index, mean_distance,
visible_keys, top_weights, top_indices, with the layer in front (layer3.out). With --x and --wo also
projected: all heads side by side, times wo. A .json beside FILE (tokens, scale, attention)
is heeded and goes on beside the results. The share of the machine's peak is told of layers with 1e9 operations and more; the
peak is measured for it, 30 ms on all threads.)";

struct Options {
  std::string file, output;
  AttentionOptions attention;
  Wanted wanted;
  int layer = -1;
  bool deflate = false, json = false, quiet = false;
};

constexpr double kFewest =
    1e9;  // operations, some 10 ms: of fewer the clock and the threads' start are too large a part

/// What ran, for a person or as JSON.
struct Report {
  int layer = -1;
  std::string query, key, value, formula;
  Path path;
  int64_t visible_pairs = 0;
  double operations = 0, seconds = 0, gflops = 0, peak = 0;  // peak 0: not measured
};

int64_t sum_of(View<const int32_t> counts) {
  int64_t sum = 0;
  for (int64_t n = 0; n < counts.size(); ++n) sum += counts.data[n];
  return sum;
}

Report compute(const Options& o, const Problem& p, int layer, Results& results, Progress& progress) {
  if (!p.has_values && !o.wanted.anything_else())
    throw OptionError(
        "v is missing; give --v FILE.npy, or a file that has it, or ask for what needs no values: --lse, --weights, "
        "--received, --stats, --top");
  const Requested r = request(p, o.wanted, layer_prefix(layer), results);
  Report report;
  report.path = find_path(p.attention, p.inputs);
  progress.begin(layer < 0 ? "" : fmt::format("layer {}", layer), report.path.work_items);
  const auto start = std::chrono::steady_clock::now();
  forward(p.attention, p.inputs, r.outputs, {.executor = &progress});
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (p.projections && p.projections->wo && p.has_values)
    results.add(layer_prefix(layer) + "projected", project_out(*p.projections, r.outputs.out));
  if (r.received) {
    Received received(r.received);
    progress.begin(layer_prefix(layer) + "received");
    observe(p.attention, p.inputs, {r.outputs.row_max, r.outputs.row_sum}, {received});
  }
  report.layer = layer;
  report.query = shape_text(p.inputs.query);
  report.key = shape_text(p.inputs.key);
  report.value = shape_text(p.inputs.value);
  report.formula = p.attention.text();
  report.visible_pairs = sum_of(r.outputs.rows.visible_keys);
  report.operations = 2 * static_cast<double>(report.visible_pairs * (p.sizes.dim + p.sizes.value_dim));
  report.gflops = report.seconds > 0 ? 1e-9 * report.operations / report.seconds : 0;
  return report;
}

std::string sentence(const Report& r) {
  const std::string layer = r.layer < 0 ? "" : fmt::format("layer {}: ", r.layer);
  const std::string share =
      r.peak > 0 ? fmt::format(", {:.0f} % of the peak of {:.0f} (float32)", 100 * r.gflops / r.peak, r.peak) : "";
  return fmt::format("{}q {} k {} v {}: {}; {}, {}, {:.3g} ms, {:.3g} GFLOP/s over {} visible pairs{}", layer, r.query,
                     r.key, r.value, r.formula, r.path.kernel, r.path.instruction_set, r.seconds * 1e3, r.gflops,
                     r.visible_pairs, share);
}

nlohmann::json json_of(const Report& r) {
  return {{"layer", r.layer < 0 ? nlohmann::json() : nlohmann::json(r.layer)},
          {"query", r.query},
          {"key", r.key},
          {"value", r.value},
          {"attention", r.formula},
          {"kernel", r.path.kernel},
          {"instruction_set", r.path.instruction_set},
          {"reason", r.path.reason},
          {"seconds", r.seconds},
          {"gflops", r.gflops},
          {"peak_gflops", r.peak > 0 ? nlohmann::json(r.peak) : nlohmann::json()},
          {"visible_pairs", r.visible_pairs}};
}

bool wants_sidecar(const Options& o, const Sidecar& of_input) {
  return !of_input.text.empty() || has_formula_options(o.attention);
}

/// What belongs into the .json beside the results; empty where nothing does.
class Accompanying {
 public:
  void add(const Problem& p) {
    const std::string attention = p.attention.text();
    const double scale = scale_of(p);
    if (layers_++ == 0) {
      facts_.attention = attention;
      facts_.scale = scale;
    }
    if (facts_.attention != attention) facts_.attention.clear();
    if (facts_.scale != scale) facts_.scale.reset();
  }
  std::string text(const Options& o, const Sidecar& of_input, const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& t : tensors) {
      if (t.view.dtype == DType::kBFloat16) facts_.bfloat16.push_back(t.name);
    }
    const bool wanted = wants_sidecar(o, of_input) || !facts_.bfloat16.empty();
    if (wanted) expect_no_other_json(o.output, of_input);
    // What lies there from another run would say something else about these results.
    return wanted || place_of_sidecar(o.output, of_input) == SidecarPlace::kSidecar ? sidecar_text(of_input, facts_)
                                                                                    : "";
  }

 private:
  Sidecar facts_;
  int layers_ = 0;
};

void save_tensors(const Options& o, const std::vector<NamedTensor>& tensors, const std::stop_token& stop) {
  if (o.output.ends_with(".npz"))
    return write_npz(o.output, tensors, o.deflate ? Compression::kDeflate : Compression::kStored, stop);
  if (tensors.size() == 1) return write_npy(o.output, tensors.front().view, stop);
  throw OptionError(
      fmt::format("-o {}: there are {} arrays to write; give a name that ends in .npz", o.output, tensors.size()));
}

/// Both files are complete before the first of them appears.
void save(const Options& o, const std::vector<NamedTensor>& tensors, const std::string& sidecar,
          const std::stop_token& stop) {
  if (sidecar.empty()) return save_tensors(o, tensors, stop);
  io::OutputFile file("write_sidecar", sidecar_path(o.output));
  file.write(std::as_bytes(std::span(sidecar)));
  save_tensors(o, tensors, stop);
  file.commit();
}

void check(const Options& o) {
  if (!o.output.ends_with(".npz") && !o.output.ends_with(".npy"))
    throw OptionError(fmt::format("-o {}: expected a name that ends in .npz or .npy", o.output));
  if (o.wanted.top < 0) throw OptionError(fmt::format("--top: expected at least 0, got {}", o.wanted.top));
  if (o.output.ends_with(".npy") && o.wanted.anything_else())
    throw OptionError(fmt::format("-o {}: an .npy holds the output alone; give a name that ends in .npz", o.output));
  expect_no_input("-o", o.output, o.file, o.attention);
  const io::OutputFile probe(o.output.ends_with(".npz") ? "write_npz" : "write_npy",
                             o.output);  // what is wrong with the place is said before long work
}

void tell(const Options& o, const std::vector<std::string>& lines, Watch& watch) {
  if (o.quiet) return;
  for (const std::string& line : lines) watch.say(line);
}

Answer attend(const Options& o, Watch& watch) {
  check(o);
  const Dump dump = o.file.empty() ? Dump() : Dump(o.file);
  if (o.layer >= 0) dump.expect_layer(o.layer);
  if (wants_sidecar(o, dump.sidecar())) expect_no_other_json(o.output, dump.sidecar());  // before long work
  tell(o, dump.notes(), watch);
  Results results;
  Accompanying accompanying;
  nlohmann::json layers = nlohmann::json::array();
  int missing_axes = 0;
  double peak = 0;
  for (int layer : o.layer >= 0 ? std::vector<int>{o.layer} : dump.layers()) {
    const Problem problem = make_problem(o.attention, dump, layer);
    missing_axes = problem.missing_axes;
    Report report = compute(o, problem, layer, results, watch.progress());
    const bool tells_peak = report.operations >= kFewest && (o.json || !o.quiet);
    if (tells_peak && peak == 0) peak = measure_peak(default_executor());
    if (tells_peak) report.peak = peak;
    accompanying.add(problem);
    layers.push_back(json_of(report));
    tell(o, problem.notes, watch);
    tell(o, {sentence(report)}, watch);
  }
  const std::vector<NamedTensor> tensors = results.named(missing_axes);
  const std::string sidecar = accompanying.text(o, dump.sidecar(), tensors);
  watch.progress().begin("writing");
  watch.save([&](const std::stop_token& stop) { save(o, tensors, sidecar, stop); });
  return {o.json ? text_of({{"file", o.output}, {"layers", layers}}) : ""};
}

}  // namespace

void add_attend(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = app.add_subcommand("attend", "Compute attention of tensors in files");
  command->footer(kExamples);
  command->add_option(
      "FILE", o.file,
      "an .npz or .safetensors with q, k, v, or layer0.q and so on, and whatever else the attention needs");
  add_tensor_options(*command, o.attention);
  command->add_option("-o,--output", o.output, "where results go: .npz, or .npy for the output alone")
      ->required()
      ->type_name("FILE");
  command->add_option("--layer", o.layer, "only this layer of FILE")->check(not_negative());
  command->add_flag("--lse", o.wanted.lse, "also the log-sum-exp of each row");
  command->add_flag("--weights", o.wanted.weights, "also all weights {B, H, L, S}");
  command->add_flag("--stats", o.wanted.stats,
                    "also entropy, effective_keys, max_weight, max_index, mean_distance, visible_keys of each row");
  command->add_flag("--received", o.wanted.received,
                    "also the weight that each key receives from all queries {B, H, S}");
  command->add_option("--top", o.wanted.top, "also the N largest weights of each row and their columns")
      ->type_name("N");
  command->add_flag("--deflate", o.deflate, "compress the .npz");
  command->add_flag("--json", o.json, "print what ran as JSON");
  command->add_flag("--quiet", o.quiet, "say nothing on stderr");
  add_attention_options(*command, o.attention);
  command->callback([options, &run] { run = [options](Watch& watch) { return attend(*options, watch); }; });
}

}  // namespace qkv::cli
