// Options of one word out of some; --color, the same in every command that draws.
#pragma once
#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "qkv/terminal.h"

namespace qkv::cli {

/// One of some words. (CheckedTransformer's own text about them would print the numbers of the enum as characters.)
template <class T> CLI::Validator words(const std::map<std::string, T>& words) {
  return CLI::CheckedTransformer(words).description("");
}

inline void add_color_option(CLI::App& command, ColorWhen& color) {
  command.add_option("--color", color, "when to use colours")
      ->transform(
          words<ColorWhen>({{"auto", ColorWhen::kAuto}, {"always", ColorWhen::kAlways}, {"never", ColorWhen::kNever}}))
      ->type_name("auto|always|never");
}

}  // namespace qkv::cli
