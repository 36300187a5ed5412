// qkv completion: what can follow the words on a command line, read from the options that there are, and the script with
// which a shell asks for it.
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "qkv/commands/commands.h"
#include "qkv/commands/examples.h"
#include "qkv/dump.h"
#include "qkv/error.h"
#include "qkv/see_json.h"

namespace qkv::cli {

namespace {

constexpr const char* kExamples = R"x(Examples:
  eval "$(qkv completion bash)"                                     (in this shell; or this line in ~/.bashrc)
  qkv completion bash > /usr/share/bash-completion/completions/qkv  (for everybody, where bash-completion is installed)
  qkv completion bash -- see --scale l                              (what the script asks: linear, log, lift))x";

constexpr const char* kBashScript =
    R"x(# Completes qkv in bash; made by `qkv completion bash`. Where it says nothing, bash completes file names.
_qkv() {
  mapfile -t COMPREPLY < <("$1" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _qkv qkv
)x";

using Words = std::vector<std::string>;

/// What stands before the word that is completed.
struct Place {
  explicit Place(const CLI::App* at) : command(at) {}
  const CLI::App* command;
  const CLI::Option* option = nullptr;  ///< whose value comes next; nothing where none is open
  size_t arguments = 0;                 ///< words that are neither options nor their values
  std::string file;                     ///< the first of them
};

std::vector<const CLI::Option*> arguments_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* o) { return o->get_positional(); });
}

void pass(Place& place, const std::string& word) {
  const bool value = place.option != nullptr && !word.starts_with('-');
  if (word == "=") return;  // bash cuts --option=value there
  place.option = nullptr;
  if (value) return;
  if (word.starts_with('-')) {
    const CLI::Option* option = place.command->get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_max() > 0) place.option = option;
    return;
  }
  const auto commands = place.command->get_subcommands([&](const CLI::App* c) { return c->get_name() == word; });
  if (!commands.empty()) return void(place = Place(commands.front()));
  if (place.arguments++ == 0) place.file = word;
}

Words layers_of(const std::string& file) {
  Words layers;
  try {
    const Dump dump(file);
    for (const int layer : dump.layers()) {
      if (layer >= 0) layers.push_back(std::to_string(layer));
    }
  } catch (const Error&) {  // a file that cannot be read has none to offer; the command itself will say why
  }
  return layers;
}

/// What an option may be set to: from its help, "surprise|weight|X" or "TEXT:{top_left,bottom_right}", where words in capitals
/// stand for anything; else names that there are. None where it is free.
Words values_of(const CLI::Option& option, const std::string& file) {
  if (option.check_lname("example")) {
    Words names;
    for (const Example& e : examples()) names.emplace_back(e.name);
    return names;
  }
  if (option.check_lname("layer")) return layers_of(file);
  std::string type = option.get_type_name();
  char between = '|';
  if (const size_t open = type.find('{'), close = type.find('}', open); open != type.npos && close != type.npos) {
    type = type.substr(open + 1, close - open - 1);
    between = ',';
  } else if (type.find(between) == type.npos) {
    return {};
  }
  Words values;
  std::istringstream parts(type);
  for (std::string part; std::getline(parts, part, between);) {
    if (std::islower(static_cast<unsigned char>(part[0])) != 0) values.push_back(part);
  }
  return values;
}

Words options_of(const CLI::App& command) {
  Words names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// What fits at a place. Where a file may stand, commands are offered only of a word that is begun, so that bash offers files.
Words candidates(const Place& place, const std::string& word) {
  if (place.option != nullptr && !word.starts_with('-')) return values_of(*place.option, place.file);
  const auto arguments = arguments_of(*place.command);
  if (!word.starts_with('-') && place.arguments < arguments.size()) {
    Words values = values_of(*arguments[place.arguments], place.file);
    if (!values.empty() || word.empty()) return values;
  }
  Words words = arguments.empty() || word.starts_with('-') ? options_of(*place.command) : Words();
  for (const CLI::App* command : place.command->get_subcommands({})) words.push_back(command->get_name());
  return words;
}

/// What the last of the words behind "qkv" can become, as bash cuts them.
Words completions(const CLI::App& app, const Words& words) {
  Place place(&app);
  for (size_t n = 0; n + 1 < words.size(); ++n) pass(place, words[n]);
  const std::string word = words.back() == "=" ? "" : words.back();
  Words all = candidates(place, word);
  std::erase_if(all, [&](const std::string& candidate) { return !candidate.starts_with(word); });
  return all;
}

struct Options {
  std::string shell;
  Words words;
  bool json = false;
};

std::string answer(const CLI::App& app, const Options& o) {
  if (o.words.empty()) return o.json ? text_of({{"shell", o.shell}, {"script", kBashScript}}) : kBashScript;
  const Words words = completions(app, o.words);
  if (o.json) return text_of({{"words", words}});
  std::string lines;
  for (const std::string& word : words) lines += word + "\n";
  return lines;
}

}  // namespace

void add_completion(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = app.add_subcommand("completion", "Print a script that completes qkv in a shell");
  command->footer(kExamples);
  command->add_option("SHELL", o.shell, "which shell")->required()->check(CLI::IsMember({"bash"}));
  command->add_option("WORDS", o.words, "behind --: instead of the script, what the last of these words can become");
  command->add_flag("--json", o.json, "the script, or the words, as JSON");
  command->callback(
      [options, &app, &run] { run = [options, &app](Watch&) -> Answer { return {answer(app, *options)}; }; });
}

}  // namespace qkv::cli
