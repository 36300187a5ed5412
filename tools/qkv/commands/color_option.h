// --color, the same in every command that draws.
#pragma once
#include "qkv/commands/choice.h"
#include "qkv/terminal.h"

namespace qkv::cli {

inline void add_color_option(CLI::App& command, ColorWhen& color) {
  add_choice<ColorWhen>(command, "--color", color,
                        {{"auto", ColorWhen::kAuto}, {"always", ColorWhen::kAlways}, {"never", ColorWhen::kNever}},
                        "whether to use colours");
}

}  // namespace qkv::cli
