// qkv see: who attends to whom.
#include "qkv/see.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "qkv/choice.h"
#include "qkv/color_option.h"
#include "qkv/commands.h"
#include "qkv/error.h"
#include "qkv/fold.h"
#include "qkv/see_page.h"
#include "qkv/watch.h"

namespace qkv::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  qkv see model.npz                              (all heads: what each does; the strongest links of every layer)
  qkv see model.npz --layer 4 --head 7           (a heat map, with tokens from model.json beside it)
  qkv see model.npz --layer 5 --head 4 --between bad,great
  qkv see model.npz --layer 4 --head 7 --row 5   (one query: its keys as bars)
  qkv see model.npz --grid --scale lift          (all heads as small pictures, weights against uniform ones)
  qkv see model.npz --layer 4 --head 7 --png head.png
  qkv see model.npz --layer 4 --head 7 --gradient (what each link adds to a loss; dout is in the file, or --dout)
  qkv see weights.npy --head 0 --tokens the,cat,sat
  qkv see --q '1,2;2,1' --k '2,1;1,2' --plain    (in sentences, for screen readers)
  qkv see model.npz --mask --causal --window 3,0 (who may see whom, and the rule that hides each pair)
  qkv see model.npz --links --top 3 --json
  qkv see model.npz --html page.html             (all heads as a page for the browser, in one file)

Colours: --color=always|never|auto; NO_COLOR, TERM, COLORTERM, COLUMNS and LINES are respected.)";

void check(const SeeOptions& o, const Dump& dump) {
  if (o.layer >= 0) dump.expect_layer(o.layer);
  if (!o.html.empty() &&
      (o.mask || o.grid || o.row >= 0 || o.only_links || !o.between.empty() || !o.png.empty() || o.plain || o.json))
    throw OptionError(
        "--html is a page of the weights; leave --mask, --grid, --row, --links, --between, --png, --plain, --json out");
  if (o.top < 1) throw OptionError(fmt::format("--top: expected at least 1, got {}", o.top));
  const std::pair<bool, const char*> others[] = {{o.mask, "--mask"},
                                                 {o.row >= 0, "--row"},
                                                 {o.only_links, "--links"},
                                                 {!o.between.empty(), "--between"},
                                                 {!o.html.empty(), "--html"},
                                                 {o.from_file, "--from-file"},
                                                 {static_cast<bool>(o.rank), "--rank"},
                                                 {o.scale != Scale::kLinear, "--scale log or lift"}};
  for (const auto& [given, option] : others)
    if (o.gradient && given)
      throw OptionError(fmt::format("--gradient is a picture with a scale of its own; leave {} out", option));
  if (o.gradient && o.grid && o.png.empty() && (o.plain || o.json))
    throw OptionError("--gradient --grid is a picture; for --plain or --json say which head, with --layer and --head");
  if ((o.head >= 0 || o.mask) && o.layer < 0 && dump.layers().size() > 1) {
    throw OptionError(
        fmt::format("--head, --mask: {} has {} layers; say which, with --layer", o.file, dump.layers().size()));
  }
}

void check(const SeeOptions& o, const Layer& layer) {
  const auto expect_below = [](const char* option, int64_t value, int64_t count, const char* what) {
    if (count == 0) throw OptionError(fmt::format("there is nothing to see: the tensors have no {}", what));
    if (value >= count) throw OptionError(fmt::format("{} {}: expected 0 to {}", option, value, count - 1));
  };
  expect_below("--batch", o.batch, layer.batches(), "batch entry");
  expect_below("--head", o.head, layer.heads(), "head");
  if (o.gradient && layer.problem() == nullptr)
    throw OptionError("--gradient: the file has weights only; it needs q, k, v and dout");
  if (o.row >= 0) expect_below("--row", o.row, layer.queries(), "query");
}

std::vector<Layer> layers_of(const SeeOptions& o, const Dump& dump, Progress& progress) {
  std::vector<Layer> layers;
  for (int number : o.layer >= 0 ? std::vector<int>{o.layer} : dump.layers()) {
    layers.emplace_back(dump, o.attention, number, o.from_file ? WeightsFrom::kFile : WeightsFrom::kQueriesAndKeys,
                        progress);
    check(o, layers.back());
  }
  return layers;
}

bool shows_one_head(const SeeOptions& o, const std::vector<Layer>& layers) {
  if (o.head >= 0) return true;
  if (o.json && o.row < 0 && !o.gradient) return false;  // for machines the same form, however many heads there are
  return layers.size() == 1 && layers.front().heads() == 1;
}

/// About one head: a mask, a row, gradients, the head.
std::string text_of_head(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens) {
  const Layer& layer = layers.front();
  const Screen screen = screen_of_stdout(o.color);
  if (o.mask) {
    if (o.plain) return fold(plain_mask(o, layer), screen);
    return o.json ? mask_json(o, layer) : mask_text(o, layer, tokens, screen);
  }
  if (o.row >= 0) {
    if (o.plain) return fold(plain_row(o, layer, tokens), screen);
    return o.json ? row_json(o, layer, tokens) : row_text(o, layer, tokens, screen);
  }
  if (o.gradient) {
    if (o.plain) return fold(gradient_plain(o, layer, tokens), screen);
    return o.json ? gradient_json(o, layer, tokens) : gradient_text(o, layer, tokens, screen);
  }
  if (o.json) return head_json(o, layer, tokens);
  if (o.plain) return fold(plain_head(o, layer, tokens), screen);
  return o.only_links ? heads_text(o, layers, tokens, screen) : head_text(o, layer, tokens, screen);
}

std::string text_of(const SeeOptions& o, const std::vector<Layer>& layers, const Tokens& tokens, Watch& watch) {
  if (!o.png.empty()) {
    SeeOptions chosen = o;
    if (!o.grid && shows_one_head(o, layers)) chosen.head = std::max(0, o.head);
    return png_text(chosen, layers, watch);
  }
  if (!o.grid && (o.mask || shows_one_head(o, layers))) {
    SeeOptions chosen = o;
    chosen.head = std::max(0, o.head);
    return text_of_head(chosen, layers, tokens);
  }
  if (o.gradient && !o.grid)
    throw OptionError("--gradient: say of which head, with --layer and --head; or all of them, with --grid or --png");
  if (!o.between.empty()) throw OptionError("--between: say which head, with --layer and --head");
  if (o.row >= 0) throw OptionError("--row: say of which head, with --layer and --head");
  if (o.json) return heads_json(o, layers, tokens);
  const Screen screen = screen_of_stdout(o.color);
  if (o.plain) return fold(plain_heads(o, layers, tokens), screen);
  return o.grid ? grid_text(o, layers, screen) : heads_text(o, layers, tokens, screen);
}

/// A picture under another name would be taken for something else.
void expect_ending(const char* option, const std::string& name, std::initializer_list<std::string_view> endings) {
  if (name.empty() || std::ranges::any_of(endings, [&](std::string_view e) { return name.ends_with(e); })) return;
  throw OptionError(fmt::format("{} {}: expected a name that ends in {}", option, name, fmt::join(endings, " or ")));
}

void save_page(const SeeOptions& o, const std::vector<Layer>& layers, Watch& watch) {
  const std::string page = page_of(o, layers);
  watch.save([&](const std::stop_token& stop) { write_page(o.html, page, stop); });
  watch.say(fmt::format("{} written, {:.2f} MB; open it in a browser", o.html, static_cast<double>(page.size()) / 1e6));
}

Answer see(const SeeOptions& asked, Watch& watch) {
  SeeOptions o = asked;
  if (o.gradient) o.scale = Scale::kSigned;
  for (const auto& [option, output] : {std::pair{"--png", o.png}, {"--html", o.html}}) {
    if (output.empty()) continue;
    expect_no_input(option, output, o.file, o.attention);
    expect_no_input(option, output, o.tokens.option, {});
    expect_no_input(option, output, o.tokens.key_option, {});
  }
  expect_ending("--png", o.png, {".png"});
  expect_ending("--html", o.html, {".html", ".htm"});
  const Dump dump = o.file.empty() ? Dump() : Dump(o.file);
  check(asked, dump);
  const std::vector<Layer> layers = layers_of(o, dump, watch.progress());
  const Tokens tokens = find_tokens(o.tokens, o.batch, layers.front().queries(), layers.front().keys());
  for (const std::string& note : dump.notes()) watch.say(note);
  if (!tokens.note.empty()) watch.say(tokens.note);
  if (const Problem* p = layers.front().problem()) {
    for (const std::string& note : p->notes) watch.say(note);
  }
  if (o.html.empty()) return {text_of(o, layers, tokens, watch)};
  save_page(o, layers, watch);
  return {};
}

/// --scale is a scale of colours where it is a word, and the factor of the scores where it is a number, as in the other
/// commands.
void add_scales(CLI::App& command, SeeOptions& o) {
  command.remove_option(command.get_option("--scale"));
  const auto understand = [&o](const std::string& text) {
    const std::map<std::string, Scale> words = {
        {"linear", Scale::kLinear}, {"log", Scale::kLog}, {"lift", Scale::kLift}};
    double factor = 0;
    if (const auto word = words.find(text); word != words.end()) o.scale = word->second;
    else if (CLI::detail::lexical_cast(text, factor)) o.attention.scale = factor;
    else throw CLI::ValidationError("--scale", fmt::format("expected linear, log, lift or a number, got '{}'", text));
  };
  command
      .add_option_function<std::string>("--scale", understand,
                                        "colours by the weight (linear), its logarithm (log) or the weight times the "
                                        "number of visible keys (lift); a number is the factor of the scores")
      ->type_name("linear|log|lift|X")
      ->trigger_on_parse();
}

}  // namespace

void add_see(CLI::App& app, Run& run) {
  auto options = std::make_shared<SeeOptions>();
  SeeOptions& o = *options;
  CLI::App* command = app.add_subcommand("see", "See who attends to whom");
  command->footer(kExamples);
  command->add_option(
      "FILE", o.file,
      "an .npz or .safetensors with q and k, or weights, or layer0.q and so on; or an .npy with weights");
  command->add_option("--layer", o.layer, "which layer")->check(not_negative());
  command->add_option("--head", o.head, "which head: as a heat map")->check(not_negative());
  command->add_option("--row", o.row, "of a head only this query: its keys as sorted bars")->check(not_negative());
  command->add_flag("--grid", o.grid, "all heads as small pictures");
  command->add_option("--batch", o.batch, "which batch entry")->check(not_negative());
  command
      ->add_option("--tokens", o.tokens.option, "a,b,c or [\"a\", \",\"] or FILE.json; absent: the .json beside FILE")
      ->type_name("LIST");
  command->add_option("--key-tokens", o.tokens.key_option, "the same of the keys, where they are others")
      ->type_name("LIST");
  command->add_option("--between", o.between, "only links between these tokens")->type_name("a,b");
  command->add_option("--top", o.top, "how many links (of each layer, where there is no --head)")->type_name("N");
  add_choice<Rank>(*command, "--rank", o.rank, {{"surprise", Rank::kSurprise}, {"weight", Rank::kWeight}},
                   "links by surprise (weight beyond the usual; the default) or by weight");
  command->add_flag("--links", o.only_links, "only the strongest links");
  command->add_flag("--mask", o.mask, "draw who may see whom, and which rule hides the rest");
  command->add_flag("--gradient", o.gradient, "draw what each link adds to a loss: weight times dout v");
  command->add_flag("--from-file", o.from_file, "take the weights in FILE, do not compute them from q and k");
  command->add_option("--png", o.png, "draw the head, or all heads, into this file instead")->type_name("FILE");
  command->add_flag("--plain", o.plain, "sentences, for screen readers");
  add_color_option(*command, o.color);
  command->add_flag("--json", o.json, "print facts as JSON");
  command->add_option("--html", o.html, "write a page for the browser: all layers and heads, or those chosen")
      ->type_name("FILE");
  add_tensor_options(*command, o.attention);
  add_attention_options(*command, o.attention);
  add_loss_option(*command, "--gradient", o.attention);
  add_scales(*command, o);
  command->callback([options, command, &run] {
    options->tokens.tensors = options->file;
    options->one_batch = command->count("--batch") > 0;
    options->attention.gradients = options->gradient;
    run = [options](Watch& watch) { return see(*options, watch); };
  });
}

}  // namespace qkv::cli
