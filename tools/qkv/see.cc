// qkv see: who attends to whom.
#include "qkv/see.h"

#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "qkv/commands.h"
#include "qkv/error.h"
#include "qkv/say.h"

namespace qkv::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  qkv see model.npz                              (all heads: what each does; the strongest links of every layer)
  qkv see model.npz --layer 4 --head 7           (a heat map, with tokens from model.json beside it)
  qkv see model.npz --layer 5 --head 4 --between bad,great
  qkv see weights.npy --head 0 --tokens the,cat,sat
  qkv see model.npz --mask --causal --window 3,0 (who may see whom, and the rule that hides each pair)
  qkv see model.npz --links --top 3 --json

Colours: --color=always|never|auto; NO_COLOR, COLORTERM, COLUMNS and LINES are respected.)";

void check(const SeeOptions& o, const Dump& dump) {
  if (o.layer >= 0) dump.expect_layer(o.layer);
  if (o.top < 1) throw OptionError(fmt::format("--top: expected at least 1, got {}", o.top));
  if ((o.head >= 0 || o.mask) && o.layer < 0 && dump.layers().size() > 1) {
    throw OptionError(
        fmt::format("--head, --mask: {} has {} layers; say which, with --layer", o.file, dump.layers().size()));
  }
}

void check(const SeeOptions& o, const Layer& layer) {
  if (o.batch < 0 || o.batch >= layer.batches())
    throw OptionError(fmt::format("--batch {}: expected 0 to {}", o.batch, layer.batches() - 1));
  if (o.head >= layer.heads()) throw OptionError(fmt::format("--head {}: expected 0 to {}", o.head, layer.heads() - 1));
}

std::vector<Layer> layers_of(const SeeOptions& o, const Dump& dump) {
  std::vector<Layer> layers;
  for (int number : o.layer >= 0 ? std::vector<int>{o.layer} : dump.layers()) {
    layers.emplace_back(dump, o.attention, number, o.from_file ? WeightsFrom::kFile : WeightsFrom::kQueriesAndKeys);
    check(o, layers.back());
  }
  return layers;
}

void tell(const std::string& note) { say("qkv see", note); }

std::string text_of(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens) {
  const Screen screen = screen_of_stdout(o.color);
  if (o.mask) {
    SeeOptions first = o;
    first.head = std::max(0, o.head);
    return o.json ? mask_json(first, layers.front()) : mask_text(first, layers.front(), tokens, screen);
  }
  const bool one_head = o.head >= 0 || (layers.size() == 1 && layers.front().heads() == 1);
  if (!o.between.empty() && !one_head) throw OptionError("--between: say which head, with --layer and --head");
  SeeOptions chosen = o;
  if (one_head) chosen.head = std::max(0, o.head);
  if (o.json) return one_head ? head_json(chosen, layers.front(), tokens) : heads_json(o, layers, tokens);
  return one_head && !o.only_links ? head_text(chosen, layers.front(), tokens, screen)
                                   : heads_text(o, layers, tokens, screen);
}

int see(const SeeOptions& o) {
  const Dump dump(o.file);
  check(o, dump);
  const std::vector<Layer> layers = layers_of(o, dump);
  const Tokens tokens = find_tokens(o.tokens, o.batch, layers.front().queries(), layers.front().keys());
  if (!tokens.note.empty()) tell(tokens.note);
  if (const Problem* p = layers.front().problem()) {
    for (const std::string& note : p->notes) tell(note);
  }
  fmt::print("{}", text_of(o, layers, tokens));
  return 0;
}

}  // namespace

void add_see(CLI::App& app, Run& run) {
  auto options = std::make_shared<SeeOptions>();
  SeeOptions& o = *options;
  CLI::App* command = app.add_subcommand("see", "See who attends to whom");
  command->footer(kExamples);
  command
      ->add_option("FILE", o.file, "an .npz with q and k, or weights, or layer0.q and so on; or an .npy with weights")
      ->required();
  command->add_option("--layer", o.layer, "which layer")->check(CLI::NonNegativeNumber);
  command->add_option("--head", o.head, "which head: as a heat map")->check(CLI::NonNegativeNumber);
  command->add_option("--batch", o.batch, "which batch entry")->check(CLI::NonNegativeNumber);
  command
      ->add_option("--tokens", o.tokens.option, "a,b,c or [\"a\", \",\"] or FILE.json; absent: the .json beside FILE")
      ->type_name("LIST");
  command->add_option("--key-tokens", o.tokens.key_option, "the same of the keys, where they are others")
      ->type_name("LIST");
  command->add_option("--between", o.between, "only links between these tokens")->type_name("a,b");
  command->add_option("--top", o.top, "how many links (of each layer, where there is no --head)")->type_name("N");
  command->add_option("--rank", o.rank, "links by surprise (weight beyond the usual; the default) or by weight")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Rank>{{"surprise", Rank::kSurprise}, {"weight", Rank::kWeight}}))
      ->type_name("surprise|weight");
  command->add_flag("--links", o.only_links, "only the strongest links");
  command->add_flag("--mask", o.mask, "draw who may see whom, and which rule hides the rest");
  command->add_flag("--from-file", o.from_file, "take the weights in FILE, do not compute them from q and k");
  command->add_flag("--log", o.log_scale, "colours by the logarithm of the weight");
  command->add_option("--color", o.color, "colours: auto, always, never")
      ->transform(CLI::CheckedTransformer(std::map<std::string, ColorWhen>{
          {"auto", ColorWhen::kAuto}, {"always", ColorWhen::kAlways}, {"never", ColorWhen::kNever}}))
      ->type_name("WHEN");
  command->add_flag("--json", o.json, "print facts as JSON");
  add_attention_options(*command, o.attention);
  command->callback([options, &run] {
    options->tokens.tensors = options->file;
    run = [options] { return see(*options); };
  });
}

}  // namespace qkv::cli
