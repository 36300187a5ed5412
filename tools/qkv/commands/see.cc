// qkv see: who attends to whom.
#include <algorithm>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "qkv/commands/choice.h"
#include "qkv/commands/color_option.h"
#include "qkv/commands/commands.h"
#include "qkv/commands/options.h"
#include "qkv/commands/watch.h"
#include "qkv/error.h"
#include "qkv/fold.h"
#include "qkv/labels.h"
#include "qkv/layer_of_file.h"
#include "qkv/see.h"
#include "qkv/see_json.h"
#include "qkv/see_page.h"

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

struct Options : SeeOptions {
  std::string file, png, html;
  AttentionOptions attention;
  bool from_file = false;
  ColorWhen color = ColorWhen::kAuto;
};

void check(const Options& o, const Dump& dump) {
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

std::vector<Layer> layers_of(const Options& o, const Dump& dump, Progress& progress) {
  std::vector<Layer> layers;
  for (int number : o.layer >= 0 ? std::vector<int>{o.layer} : dump.layers()) {
    layers.push_back(
        layer_of(dump, o.attention, number, o.from_file ? WeightsFrom::kFile : WeightsFrom::kQueriesAndKeys, progress));
    check(o, layers.back());
  }
  return layers;
}

/// A picture under another name would be taken for something else.
void expect_ending(const char* option, const std::string& name, std::initializer_list<std::string_view> endings) {
  if (name.empty() || std::ranges::any_of(endings, [&](std::string_view e) { return name.ends_with(e); })) return;
  throw OptionError(fmt::format("{} {}: expected a name that ends in {}", option, name, fmt::join(endings, " or ")));
}

std::string save_picture(const Options& o, const std::vector<Layer>& layers, Watch& watch) {
  const Picture picture = picture_of(o, layers);
  const Image& image = picture.image;
  watch.save([&](const std::stop_token& stop) { write_png(o.png, image, stop); });
  if (o.json)
    return text_of({{"png", o.png}, {"width", image.width}, {"height", image.height}, {"caption", picture.caption}});
  return fold(fmt::format("{}: {} x {} pixels. {}.\n", safe_line(o.png), image.width, image.height, picture.caption),
              screen_of_stdout(o.color));
}

void save_page(const Options& o, const std::vector<Layer>& layers, Watch& watch) {
  const std::string page = page_of(o, layers);
  watch.save([&](const std::stop_token& stop) { write_page(o.html, page, stop); });
  watch.say(fmt::format("{} written, {:.2f} MB; open it in a browser", o.html, static_cast<double>(page.size()) / 1e6));
}

Answer see(const Options& asked, Watch& watch) {
  Options o = asked;
  o.title = std::filesystem::path(o.file).filename().string();
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
  if (!o.png.empty()) return {save_picture(o, layers, watch)};
  if (o.html.empty()) return {see_text(o, layers, tokens, screen_of_stdout(o.color))};
  save_page(o, layers, watch);
  return {};
}

/// --scale is a scale of colours where it is a word, and the factor of the scores where it is a number, as in the other
/// commands.
void add_scales(CLI::App& command, Options& o) {
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
  auto options = std::make_shared<Options>();
  Options& o = *options;
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
