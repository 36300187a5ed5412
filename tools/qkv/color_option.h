// --color, the same in every command that draws.
#pragma once
#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "qkv/terminal.h"

namespace qkv::cli {

inline void add_color_option(CLI::App& command, ColorWhen& color) {
  command.add_option("--color", color, "colours: auto, always, never")
      ->transform(CLI::CheckedTransformer(std::map<std::string, ColorWhen>{
          {"auto", ColorWhen::kAuto}, {"always", ColorWhen::kAlways}, {"never", ColorWhen::kNever}}))
      ->type_name("WHEN");
}

}  // namespace qkv::cli
