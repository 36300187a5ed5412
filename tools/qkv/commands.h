// The subcommands. A new one: a file with add_NAME, a line here and a line in main.cc.
#pragma once
#include <functional>

// NOLINTNEXTLINE(readability-identifier-naming)
namespace CLI {
class App;
}

namespace qkv::cli {

/// What the chosen subcommand does, with its exit code: 0, or 1 for findings. Set while options are read, run after it.
using Run = std::function<int()>;

void add_attend(CLI::App& app, Run& run);
void add_see(CLI::App& app, Run& run);
void add_explain(CLI::App& app, Run& run);
void add_compare(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_completion(CLI::App& app, Run& run);

}  // namespace qkv::cli
