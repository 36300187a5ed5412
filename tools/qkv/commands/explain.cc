// qkv explain: every step of attention with its numbers.

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "qkv/commands/choice.h"
#include "qkv/commands/color_option.h"
#include "qkv/commands/commands.h"
#include "qkv/commands/examples.h"
#include "qkv/commands/options.h"
#include "qkv/commands/watch.h"
#include "qkv/error.h"
#include "qkv/explain.h"
#include "qkv/fold.h"
#include "qkv/part.h"

namespace qkv::cli {

namespace {

constexpr const char* kHelp = R"(Examples:
  qkv explain --q '1,2;2,1' --k '2,1;1,2' --v '3,0;0,3'       (typed in: rows end with ;)
  qkv explain --example W3c --query 1                          (a worked example)
  qkv explain model.npz --layer 4 --head 7 --query 5           (with tokens from model.json beside it)
  qkv explain --x '1,0;0,1' --wq '1,2;0,1' --wk '1,0;1,1' --wv '2,0;0,1' --heads 1 --weight-layout in_out
  qkv explain model.npz --layer 0 --causal --window 3,0 --json
  qkv explain --example W1 --backward --dout '1,0;0,1'          (and the steps back from a loss)
  qkv explain scaling --dims 8,64,128,512                      (why scores are divided by sqrt(D))

Steps are computed in float64 and compared with the library at the end: exit code 1 where they are too far apart.)";

struct Options {
  std::string file, example;
  TokenSource tokens;
  AttentionOptions attention;
  int layer = -1, top = 16;
  int64_t head = 0, query = 0, batch = 0;
  bool json = false;
  ColorWhen color = ColorWhen::kAuto;
};

void check(const Options& o, const Problem& p) {
  expect_in_range("--batch", o.batch, p.sizes.batch);
  expect_in_range("--head", o.head, p.sizes.heads);
  expect_in_range("--query", o.query, queries_of(p, o.batch));
}

int layer_of(const Options& o, const Dump& dump) {
  if (o.layer >= 0) dump.expect_layer(o.layer);
  if (o.layer < 0 && dump.layers().size() > 1)
    throw OptionError(fmt::format("{} has {} layers; say which, with --layer", o.file, dump.layers().size()));
  return o.layer >= 0 ? o.layer : dump.layers().front();
}

/// Also of what the file has beside.
std::vector<TensorFacts> facts_of_all(const Problem& problem, const Dump& dump, int layer) {
  std::deque<Array> memory;
  std::vector<NamedTensor> others;
  for (const char* name : {"weights", "out"}) {
    auto found = dump.find(layer, name);
    if (found) others.push_back({name, std::as_const(memory.emplace_back(std::move(*found))).view()});
  }
  return facts_of_tensors(problem, others);
}

/// `heading`: what stands above the page.
Answer explain_from(const Options& o, const std::string& heading, Watch& watch) {
  if (o.top < 1) throw OptionError(fmt::format("--top: expected at least 1, got {}", o.top));
  const Dump dump = o.file.empty() ? Dump() : Dump(o.file);
  const int layer = layer_of(o, dump);
  const Problem problem = make_problem(o.attention, dump, layer);
  forward(problem.attention, problem.inputs, {});  // the checks alone
  check(o, problem);
  const Tokens tokens = find_tokens(o.tokens, o.batch, problem.sizes.queries, problem.sizes.keys);
  for (const std::string& note : dump.notes()) watch.say(note);
  for (const std::string& note : problem.notes) watch.say(note);
  if (!tokens.note.empty()) watch.say(tokens.note);
  watch.progress().begin(fmt::format("query {}", o.query));
  const Explanation e = explain_query(problem, o.batch, o.head, o.query);
  const std::vector<TensorFacts> tensors = facts_of_all(problem, dump, layer);
  const bool holds =
      std::all_of(e.agreements.begin(), e.agreements.end(), [](const Agreement& a) { return a.holds(); });
  return {o.json ? explanation_json(e, problem, tensors, tokens)
                 : heading + explanation_text(e, problem, tensors, tokens, o.top, screen_of_stdout(o.color)),
          holds ? 0 : 1};
}

/// As a shell wants it: what holds a ';' in quotes.
std::string quoted(const std::string& options) {
  std::string text;
  for (size_t first = 0; first < options.size();) {
    const size_t last = std::min(options.find(' ', first), options.size());
    const std::string word = options.substr(first, last - first);
    text += (first == 0 ? "" : " ") + (word.find(';') == word.npos ? word : "'" + word + "'");
    first = last + 1;
  }
  return text;
}

/// The options of an example, as if they had been typed.
Answer explain_example(const Options& o, Watch& watch) {
  const Example& example = find_example(o.example.c_str());
  Options typed = o;  // what was typed beside the example stays, unless the example says it too
  CLI::App app;
  add_tensor_options(app, typed.attention);
  add_attention_options(app, typed.attention);
  app.parse(example.options);
  const std::string title = fold(fmt::format("{}: {}\n", example.name, example.title), screen_of_stdout(o.color));
  return explain_from(typed, title + fmt::format("qkv explain {}\n\n", quoted(example.options)), watch);
}

Answer explain(const Options& o, Watch& watch) {
  if (o.example.empty()) {
    if (o.file.empty() && o.attention.tensors.at("q").empty() && o.attention.tensors.at("x").empty())
      throw OptionError("nothing to explain: give FILE, --q with --k, --x with --wq, or --example W1");
    return explain_from(o, "", watch);
  }
  if (!o.file.empty()) throw OptionError(fmt::format("--example {} and {}: give one of them", o.example, o.file));
  return explain_example(o, watch);
}

void add_scaling(CLI::App& command, Run& run) {
  auto options = std::make_shared<ScalingOptions>();
  ScalingOptions& o = *options;
  CLI::App* scaling = command.add_subcommand("scaling", "Measure why scores are divided by sqrt(D)");
  scaling->add_option("--dims", o.dims, "head sizes, as 8,64,512")->delimiter(',')->check(CLI::Range(1, 65536));
  scaling->add_option("--keys", o.keys, "keys of a query")->check(CLI::Range(2, 4096));
  scaling->add_option("--draws", o.draws, "queries with their keys; the table shows medians")
      ->check(CLI::Range(1, 1000000));
  scaling->add_option("--seed", o.seed, "of the normal random numbers");
  scaling->add_flag("--json", o.json, "as JSON");
  scaling->callback([options, &run] {
    run = [options](Watch& watch) -> Answer { return {explain_scaling(*options, watch.progress())}; };
  });
}

}  // namespace

void add_explain(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = app.add_subcommand("explain", "Show every step of attention with its numbers");
  command->footer(kHelp);
  command->add_option("FILE", o.file, "an .npz with q, k, v, or layer0.q and so on; or x, wq, wk, wv");
  command->add_option("--example", o.example, "a worked example: W1, W1c, W2, W3, ...")->type_name("NAME");
  command->add_option("--layer", o.layer, "which layer")->check(not_negative());
  command->add_option("--head", o.head, "which head; absent: 0")->check(not_negative());
  command->add_option("--query", o.query, "which query; absent: 0")->check(not_negative());
  command->add_option("--batch", o.batch, "which batch entry")->check(not_negative());
  command
      ->add_option("--tokens", o.tokens.option, "a,b,c or [\"a\", \",\"] or FILE.json; absent: the .json beside FILE")
      ->type_name("LIST");
  command->add_option("--key-tokens", o.tokens.key_option, "the same of the keys, where they are others")
      ->type_name("LIST");
  command->add_option("--top", o.top, "how many keys are shown one by one; of more, the strongest")->type_name("N");
  add_color_option(*command, o.color);
  command->add_flag("--backward", o.attention.gradients, "also the steps back from a loss: gradients by q, k and v");
  add_loss_option(*command, "--backward", o.attention);
  command->add_flag("--json", o.json, "all numbers as JSON");
  add_tensor_options(*command, o.attention);
  add_attention_options(*command, o.attention);
  add_scaling(*command, run);
  command->callback([options, command, &run] {
    if (!command->get_subcommands().empty()) return;
    options->tokens.tensors = options->file;
    run = [options](Watch& watch) { return explain(*options, watch); };
  });
}

}  // namespace qkv::cli
