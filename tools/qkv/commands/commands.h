// The subcommands. A new one: a file with add_NAME, a line here and a line in main.cc.
#pragma once
#include <functional>
#include <string>

// NOLINTNEXTLINE(readability-identifier-naming)
namespace CLI {
class App;
}

namespace qkv::cli {

class Watch;

/// What a subcommand ends with.
struct Answer {
  std::string text;  ///< for standard output
  int code = 0;      ///< the exit code: 0, or 1 for findings
};

/// What the chosen subcommand does. Set while options are read, run after it.
using Run = std::function<Answer(Watch&)>;

void add_attend(CLI::App& app, Run& run);
void add_see(CLI::App& app, Run& run);
void add_explain(CLI::App& app, Run& run);
void add_compare(CLI::App& app, Run& run);
void add_train(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_completion(CLI::App& app, Run& run);

}  // namespace qkv::cli
