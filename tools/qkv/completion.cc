// qkv completion: a script that completes qkv's commands and options in a shell, made from the options that there are.
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "qkv/commands.h"

namespace qkv::cli {

namespace {

constexpr const char* kExamples = R"x(Examples:
  eval "$(qkv completion bash)"                                     (in this shell; or this line in ~/.bashrc)
  qkv completion bash > /usr/share/bash-completion/completions/qkv  (for everybody, where bash-completion is installed))x";

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// What an option may be set to, from its help: "surprise|weight", or "TEXT:{top_left,bottom_right}". None where that is free.
std::vector<std::string> values_of(const CLI::Option& option) {
  std::string type = option.get_type_name();
  char between = '|';
  if (const size_t open = type.find('{'), close = type.find('}', open); open != type.npos && close != type.npos) {
    type = type.substr(open + 1, close - open - 1);
    between = ',';
  }
  std::vector<std::string> values;
  std::istringstream parts(type);
  for (std::string part; std::getline(parts, part, between);) values.push_back(part.substr(0, part.find("->")));
  return values.size() > 1 || between == ',' ? values : std::vector<std::string>();
}

/// "    see:--color) words="auto always never" ;;" of each option that has such values.
std::string cases_of_values(const CLI::App& command) {
  std::string cases;
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string> values = values_of(*option);
    if (values.empty()) continue;
    std::vector<std::string> places;
    for (const std::string& name : option->get_snames())
      places.push_back(fmt::format("{}:-{}", command.get_name(), name));
    for (const std::string& name : option->get_lnames())
      places.push_back(fmt::format("{}:--{}", command.get_name(), name));
    if (places.empty()) places.push_back(command.get_name() + ":" + command.get_name());  // the word after the command
    cases += fmt::format("    {}) words=\"{}\" ;;\n", fmt::join(places, "|"), fmt::join(values, " "));
  }
  return cases;
}

std::string bash_script(const CLI::App& app) {
  std::vector<std::string> names;
  std::string options, values;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
    options += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), fmt::join(options_of(*command), " "));
    values += cases_of_values(*command);
  }
  return fmt::format(
      R"x(# Completes qkv in bash; made by `qkv completion bash`. Where it says nothing, bash completes file names.
_qkv() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command="" words="" n
  # bash cuts --option=value at the =.
  if [[ $word == = ]]; then word=""; elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  for ((n = 1; n < COMP_CWORD; ++n)); do
    if [[ ${{COMP_WORDS[n]}} != -* ]]; then command=${{COMP_WORDS[n]}}; break; fi
  done
  COMPREPLY=()
  case $command:$before in
{0}  esac
  if [[ -z $words && ( -z $command || $word == -* ) ]]; then
    case $command in
    "") words="{1} {2}" ;;
{3}    esac
  fi
  if [[ -n $words ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word"); fi
}}
complete -o default -F _qkv qkv
)x",
      values, fmt::join(names, " "), fmt::join(options_of(app), " "), options);
}

}  // namespace

void add_completion(CLI::App& app, Run& run) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print a script that completes qkv in a shell");
  command->footer(kExamples);
  command->add_option("SHELL", *shell, "which shell")->required()->check(CLI::IsMember({"bash"}));
  command->callback([shell, &app, &run] { run = [&app](Watch&) -> Answer { return {bash_script(app)}; }; });
}

}  // namespace qkv::cli
