// qkv attend: computes attention of tensors in files.
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "qkv/choice.h"
#include "qkv/commands.h"
#include "qkv/error.h"
#include "qkv/problem.h"
#include "qkv/say.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  qkv attend --q q.npy --k k.npy --v v.npy -o out.npz --causal --lse
  qkv attend model.npz -o out.npz --stats --top 4      (names q, k, v, or layer0.q, layer0.k, ... of many layers)
  qkv attend model.npz --layer 3 -o out.npz --attention "causal window:255,0 align:bottom_right | softcap:30 | softmax"
  qkv attend --x tokens.npy --wq wq.npy --wk wk.npy --wv wv.npy --wo wo.npy --heads 8 -o out.npz
  qkv attend --q q.npy --k kv.npz:k --v kv.npz:v -o out.npy --lengths 13,22,4 --window 7,0 --align top_left

Shapes: q {B, H, L, D}, k {B, Hkv, S, D}, v {B, Hkv, S, Dv}; {H, L, D} and {L, D} are one batch entry.
Results: out, and where asked for lse, weights, entropy, effective_keys, max_weight, max_index, mean_distance,
visible_keys, top_weights, top_indices, with the layer in front (layer3.out). With --x and --wo also projected: all
heads side by side, times wo.)";

struct Options {
  std::string file, output;
  AttentionOptions attention;
  int layer = -1, top = 0;
  bool lse = false, weights = false, stats = false, deflate = false, json = false, quiet = false;
};

/// Arrays that the library writes into, with the names they get in the file; of an empty name they are not written.
class Results {
 public:
  View<void> add(std::string name, DType dtype, std::vector<int64_t> shape) {
    arrays_.emplace_back(dtype, std::move(shape));
    names_.push_back(std::move(name));
    return arrays_.back().view();
  }
  void add(std::string name, Array array) {
    arrays_.push_back(std::move(array));
    names_.push_back(std::move(name));
  }
  /// Files get as many axes as q had.
  std::vector<NamedTensor> named(int missing_axes) const {
    std::vector<NamedTensor> tensors;
    for (size_t n = 0; n < names_.size(); ++n) {
      if (!names_[n].empty()) tensors.push_back({names_[n], without_first_axes(arrays_[n].view(), missing_axes)});
    }
    return tensors;
  }

 private:
  std::deque<Array> arrays_;
  std::vector<std::string> names_;
};

/// Makes the arrays of one layer and the views into them.
class Request {
 public:
  Request(const Problem& p, std::string prefix, Results& results)
      : problem_(p),
        prefix_(std::move(prefix)),
        results_(results),
        rows_{p.sizes.batch, p.sizes.heads, p.sizes.queries} {
    if (p.packed) rows_ = {p.inputs.query.shape[0], p.sizes.heads};
    if (p.inputs.query.dtype == DType::kFloat64) sum_ = DType::kFloat64;
  }

  Outputs outputs(const Options& o) {
    const Sizes& s = problem_.sizes;
    Outputs out;
    out.out = add("out", problem_.inputs.query.dtype, with(s.value_dim));
    if (o.lse) out.lse = add("lse", sum_, rows_);
    if (o.weights) out.weights = add("weights", sum_, {s.batch, s.heads, s.queries, s.keys});
    if (o.stats) statistics(out.rows);
    else out.rows.visible_keys = results_.add("", DType::kInt32, rows_).as<int32_t>();  // for the rate
    if (o.top > 0) {
      out.rows.top_weights = add("top_weights", DType::kFloat32, with(o.top)).as<float>();
      out.rows.top_indices = add("top_indices", DType::kInt32, with(o.top)).as<int32_t>();
    }
    return out;
  }

 private:
  View<void> add(const char* name, DType dtype, std::vector<int64_t> shape) {
    return results_.add(prefix_ + name, dtype, std::move(shape));
  }
  View<float> floats(const char* name) { return add(name, DType::kFloat32, rows_).as<float>(); }
  View<int32_t> numbers(const char* name) { return add(name, DType::kInt32, rows_).as<int32_t>(); }
  std::vector<int64_t> with(int64_t last) const {
    auto shape = rows_;
    shape.push_back(last);
    return shape;
  }
  void statistics(RowStatistics& r) {
    r.entropy = floats("entropy");
    r.effective_keys = floats("effective_keys");
    r.max_weight = floats("max_weight");
    r.max_index = numbers("max_index");
    r.mean_distance = floats("mean_distance");
    r.visible_keys = numbers("visible_keys");
    if (problem_.attention.has_sinks() || problem_.attention.has_zero_key()) r.sink_share = floats("sink_share");
  }

  const Problem& problem_;
  std::string prefix_;
  Results& results_;
  std::vector<int64_t> rows_;
  DType sum_ = DType::kFloat32;
};

/// What ran, for a person or as JSON.
struct Report {
  int layer = -1;
  std::string query, key, value, formula;
  Path path;
  int64_t visible_pairs = 0;
  double seconds = 0, gflops = 0;
};

int64_t sum_of(View<const int32_t> counts) {
  int64_t sum = 0;
  for (int64_t n = 0; n < counts.size(); ++n) sum += counts.data[n];
  return sum;
}

Report compute(const Options& o, const Problem& p, int layer, Results& results) {
  const Outputs outputs = Request(p, layer_prefix(layer), results).outputs(o);
  const auto start = std::chrono::steady_clock::now();
  forward(p.attention, p.inputs, outputs);
  Report r;
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (p.projections && p.projections->wo)
    results.add(layer_prefix(layer) + "projected", project_out(*p.projections, outputs.out));
  r.layer = layer;
  r.query = shape_text(p.inputs.query);
  r.key = shape_text(p.inputs.key);
  r.value = shape_text(p.inputs.value);
  r.formula = p.attention.text();
  r.path = find_path(p.attention, p.inputs);
  r.visible_pairs = sum_of(outputs.rows.visible_keys);
  r.gflops =
      r.seconds > 0 ? 2e-9 * static_cast<double>(r.visible_pairs * (p.sizes.dim + p.sizes.value_dim)) / r.seconds : 0;
  return r;
}

std::string sentence(const Report& r) {
  const std::string layer = r.layer < 0 ? "" : fmt::format("layer {}: ", r.layer);
  return fmt::format("{}q {} k {} v {}: {}; {}, {}, {:.3g} ms, {:.3g} GFLOP/s over {} visible pairs", layer, r.query,
                     r.key, r.value, r.formula, r.path.kernel, r.path.instruction_set, r.seconds * 1e3, r.gflops,
                     r.visible_pairs);
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
          {"visible_pairs", r.visible_pairs}};
}

void save(const Options& o, const std::vector<NamedTensor>& tensors) {
  if (o.output.ends_with(".npz"))
    return write_npz(o.output, tensors, o.deflate ? Compression::kDeflate : Compression::kStored);
  if (tensors.size() == 1) return write_npy(o.output, tensors.front().view);
  throw OptionError(
      fmt::format("-o {}: there are {} arrays to write; give a name that ends in .npz", o.output, tensors.size()));
}

void check(const Options& o) {
  if (!o.output.ends_with(".npz") && !o.output.ends_with(".npy"))
    throw OptionError(fmt::format("-o {}: expected a name that ends in .npz or .npy", o.output));
  if (o.top < 0) throw OptionError(fmt::format("--top: expected at least 0, got {}", o.top));
}

int attend(const Options& o) {
  check(o);
  const Dump dump = o.file.empty() ? Dump() : Dump(o.file);
  if (o.layer >= 0) dump.expect_layer(o.layer);
  Results results;
  nlohmann::json layers = nlohmann::json::array();
  int missing_axes = 0;
  for (int layer : o.layer >= 0 ? std::vector<int>{o.layer} : dump.layers()) {
    const Problem problem = make_problem(o.attention, dump, layer);
    missing_axes = problem.missing_axes;
    const Report report = compute(o, problem, layer, results);
    layers.push_back(json_of(report));
    if (o.quiet) continue;
    for (const std::string& note : problem.notes) say("qkv attend", note);
    say("qkv attend", sentence(report));
  }
  save(o, results.named(missing_axes));
  if (o.json)
    fmt::print("{}\n", nlohmann::json{{"file", o.output}, {"layers", layers}}.dump(
                           2, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

}  // namespace

void add_attend(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = app.add_subcommand("attend", "Compute attention of tensors in files");
  command->footer(kExamples);
  command->add_option("FILE", o.file,
                      "an .npz with q, k, v, or layer0.q and so on, and whatever else the attention needs");
  add_tensor_options(*command, o.attention);
  command->add_option("-o,--output", o.output, "where results go: .npz, or .npy for the output alone")
      ->required()
      ->type_name("FILE");
  command->add_option("--layer", o.layer, "only this layer of FILE")->check(not_negative());
  command->add_flag("--lse", o.lse, "also the log-sum-exp of each row");
  command->add_flag("--weights", o.weights, "also all weights {B, H, L, S}");
  command->add_flag("--stats", o.stats,
                    "also entropy, effective_keys, max_weight, max_index, mean_distance, visible_keys of each row");
  command->add_option("--top", o.top, "also the N largest weights of each row and their columns")->type_name("N");
  command->add_flag("--deflate", o.deflate, "compress the .npz");
  command->add_flag("--json", o.json, "print what ran as JSON");
  command->add_flag("--quiet", o.quiet, "say nothing on stderr");
  add_attention_options(*command, o.attention);
  command->callback([options, &run] { run = [options] { return attend(*options); }; });
}

}  // namespace qkv::cli
