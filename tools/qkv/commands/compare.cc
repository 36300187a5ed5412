// qkv compare: how far the weights and outputs in a file are from those that qkv computes from its q, k and v.
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "qkv/commands/choice.h"
#include "qkv/commands/commands.h"
#include "qkv/commands/options.h"
#include "qkv/commands/watch.h"
#include "qkv/error.h"
#include "qkv/see_json.h"
#include "qkv/table.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  qkv compare model.npz                       (weights and out in the file against softmax(q k^T / sqrt(D)) v)
  qkv compare model.npz --causal --tolerance 1e-5

Each number is the largest difference of any element. "exact" is the same attention computed in float64: it tells whose
error a difference is. Exit code 1 where a difference of file and qkv is larger than the tolerance, or is no number.)";

struct Options {
  std::string file;
  AttentionOptions attention;
  int layer = -1;
  std::optional<double> tolerance;
  bool json = false;
};

struct Difference {
  int layer;
  std::string tensor;
  double file_qkv = 0, qkv_exact = 0, file_exact = 0;
};

/// NaN where only one of the two is NaN or they are different infinities.
double largest_difference(View<const void> a, View<const void> b) {
  double largest = 0;
  for (int64_t i = 0; i < a.shape[0]; ++i) {
    for (int64_t j = 0; j < a.shape[1]; ++j) {
      for (int64_t k = 0; k < a.shape[2]; ++k) {
        for (int64_t l = 0; l < a.shape[3]; ++l) {
          const double x = element(a, i, j, k, l), y = element(b, i, j, k, l);
          if (x == y || (std::isnan(x) && std::isnan(y))) continue;
          const double difference = std::abs(x - y);
          if (!(difference <= largest)) largest = difference;
          if (std::isnan(largest)) return largest;
        }
      }
    }
  }
  return largest;
}

/// weights or out of a problem.
Array compute(const Problem& p, const std::string& tensor, Progress& progress) {
  const DType dtype = p.inputs.query.dtype;
  const Sizes& s = p.sizes;
  Outputs outputs;
  if (tensor == "weights") {
    Array weights(dtype == DType::kFloat64 ? dtype : DType::kFloat32, {s.batch, s.heads, s.queries, s.keys});
    outputs.weights = weights.view();
    progress.forward(p.attention, p.inputs, outputs);
    return weights;
  }
  Array out(dtype, p.packed ? std::vector<int64_t>{p.inputs.query.shape[0], s.heads, s.value_dim}
                            : std::vector<int64_t>{s.batch, s.heads, s.queries, s.value_dim});
  outputs.out = out.view();
  progress.forward(p.attention, p.inputs, outputs);
  return out;
}

/// The same problem in float64.
Problem widened(const Problem& p) {
  Problem wide;
  wide.attention = p.attention;
  wide.inputs = p.inputs;
  wide.sizes = p.sizes;
  wide.packed = p.packed;
  for (View<const void>* x : {&wide.inputs.query, &wide.inputs.key, &wide.inputs.value}) {
    wide.memory.push_back(to_type(*x, DType::kFloat64));
    *x = wide.memory.back().view();
  }
  return wide;
}

void expect_shape(const std::string& tensor, View<const void> in_file, View<const void> computed) {
  if (in_file.shape == computed.shape) return;
  throw ShapeError(fmt::format("{} in the file is {}, but q, k and v give {}; are they of the same layer and call?",
                               tensor, shape_text(in_file), shape_text(computed)));
}

std::vector<Difference> compare_layer(const Options& o, const Dump& dump, int layer, Watch& watch) {
  std::vector<Difference> differences;
  const Problem problem = make_problem(o.attention, dump, layer);
  for (const std::string& note : problem.notes) watch.say(note);
  const Problem exact = widened(problem);
  for (const std::string tensor : {"weights", "out"}) {
    const auto in_file = dump.find(layer, tensor);
    if (!in_file || (tensor == "out" && !dump.has(layer, "v"))) continue;
    const View<const void> theirs = problem.packed ? in_file->view() : as_four_axes(in_file->view());
    const auto answer = [&](const Problem& p, const char* type) {
      watch.progress().begin(fmt::format("{}{} in {}", layer_prefix(layer), tensor, type));
      return compute(p, tensor, watch.progress());
    };
    const Array ours = answer(problem, name(problem.inputs.query.dtype)), reference = answer(exact, "float64");
    expect_shape(tensor, theirs, ours.view());
    differences.push_back({layer, tensor, largest_difference(theirs, ours.view()),
                           largest_difference(ours.view(), reference.view()),
                           largest_difference(theirs, reference.view())});
  }
  return differences;
}

std::string table_of(const std::vector<Difference>& differences) {
  Table table({{"layer", Side::kRight},
               {"tensor", Side::kLeft},
               {"file - qkv", Side::kRight},
               {"qkv - exact", Side::kRight, Narrow::kFirst},
               {"file - exact", Side::kRight, Narrow::kDrop}});
  const auto number = [](double d) { return fmt::format("{:.2g}", d); };
  for (const Difference& d : differences) {
    table.add({d.layer < 0 ? "-" : std::to_string(d.layer), d.tensor, number(d.file_qkv), number(d.qkv_exact),
               number(d.file_exact)});
  }
  return table.text(screen_of_stdout(ColorWhen::kAuto));
}

nlohmann::json json_of(const std::vector<Difference>& differences) {
  nlohmann::json list = nlohmann::json::array();
  for (const Difference& d : differences) {
    list.push_back({{"layer", d.layer < 0 ? nlohmann::json() : nlohmann::json(d.layer)},
                    {"tensor", d.tensor},
                    {"file_qkv", d.file_qkv},
                    {"qkv_exact", d.qkv_exact},
                    {"file_exact", d.file_exact}});
  }
  return list;
}

Answer compare(const Options& o, Watch& watch) {
  const Dump dump(o.file);
  if (o.layer >= 0) dump.expect_layer(o.layer);
  for (const std::string& note : dump.notes()) watch.say(note);
  std::vector<Difference> all;
  for (int layer : o.layer >= 0 ? std::vector<int>{o.layer} : dump.layers()) {
    for (Difference& d : compare_layer(o, dump, layer, watch)) all.push_back(std::move(d));
  }
  if (all.empty())
    throw FileError(fmt::format("{} has neither weights nor out (with v) beside q and k; nothing to compare", o.file));
  double worst = 0;
  for (const Difference& d : all) {
    if (!(d.file_qkv <= worst)) worst = d.file_qkv;  // a NaN stays
    if (std::isnan(worst)) break;
  }
  const bool failed = o.tolerance ? !(worst <= *o.tolerance) : std::isnan(worst);
  const int code = failed ? 1 : 0;
  if (o.json)
    return {text_of({{"differences", json_of(all)},
                     {"largest", worst},
                     {"within_tolerance", o.tolerance ? nlohmann::json(!failed) : nlohmann::json()}}),
            code};
  std::string text = fmt::format("{}largest difference of file and qkv: {:.2g}", table_of(all), worst);
  if (o.tolerance) text += fmt::format(", {} the tolerance of {:.2g}", failed ? "above" : "within", *o.tolerance);
  else if (failed) text += ": one of the two is no number where the other is one";
  return {text + "\n", code};
}

}  // namespace

void add_compare(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = app.add_subcommand("compare", "Compare weights and outputs in a file with recomputed ones");
  command->footer(kExamples);
  command->add_option("FILE", o.file, "an .npz or .safetensors with q, k, v and weights or out, or layer0.q and so on")
      ->required();
  command->add_option("--layer", o.layer, "only this layer")->check(not_negative());
  command->add_option("--tolerance", o.tolerance, "largest difference that is allowed")
      ->check([](const std::string& text) {
        double value = 0;
        return CLI::detail::lexical_cast(text, value) && value >= 0 ? ""
                                                                    : "expected a number of 0 or more, got " + text;
      });
  command->add_flag("--json", o.json, "print the differences as JSON");
  add_attention_options(*command, o.attention);
  command->callback([options, &run] { run = [options](Watch& watch) { return compare(*options, watch); }; });
}

}  // namespace qkv::cli
