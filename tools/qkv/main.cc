// qkv: attention on the command line. Exit codes: 0 fine, 1 a finding or a failure of the machine, 2 wrong use or a file that
// cannot be read or written.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "core/nearest.h"
#include "qkv/commands/commands.h"
#include "qkv/commands/watch.h"
#include "qkv/error.h"
#include "qkv/say.h"
#include "qkv/version.h"

namespace {

constexpr int kFailure = 1, kWrongUse = 2;

/// "qkv attend"
std::string name_of(const CLI::App& app) {
  std::string name = "qkv";
  for (const CLI::App* command : app.get_subcommands()) name += " " + command->get_name();
  return name;
}

/// "qkv attend: ..." on one line, whatever the message or a file name in it holds.
int report(const CLI::App& app, std::string_view message, int code) {
  qkv::cli::say(name_of(app), qkv::cli::without_function(message));
  return code;
}

/// Writes `text` to standard output. The exit code.
int print(const CLI::App& app, const std::string& text, int code) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return code;
  return report(app, fmt::format("standard output cannot be written: {}", std::strerror(errno)), kFailure);
}

qkv::cli::Answer answer_of(const qkv::cli::Run& chosen, const CLI::App& app) {
  qkv::cli::Watch watch(name_of(app));
  return chosen(watch);
}

/// The word that should have been a command; empty where there is none.
std::string unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return "";
  const std::string word = argv[1];
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (std::ranges::find(names, word) != names.end()) return "";
  const auto meant = qkv::nearest_word(word, {names.begin(), names.end()});
  return fmt::format(
      "there is no command '{}'; {}", word,
      meant ? fmt::format("did you mean '{}'?", *meant) : fmt::format("there are {}", fmt::join(names, ", ")));
}

int report_wrong_options(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {  // --help, --version
    std::ostringstream text;
    app.exit(error, text, text);
    return print(app, text.str(), 0);
  }
  const auto chosen = app.get_subcommands();
  std::string what = error.what();
  for (const std::string& word : app.remaining(true)) {  // what is left over, the option that it belongs to first
    if (!word.starts_with("-") || word == "--") continue;
    what = fmt::format("there is no option {}", word);
    break;
  }
  return report(app,
                fmt::format("{} (qkv {}--help lists what there is)", what,
                            chosen.empty() ? "" : chosen.front()->get_name() + " "),
                kWrongUse);
}

/// A standard stream that the caller has closed must not become the number of a file that is written later. What is written to
/// standard output fails then as it did before.
void open_standard_streams() {
  for (const int descriptor : {0, 1, 2}) {
    const int mode = descriptor == 1 ? O_RDONLY : O_RDWR;
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", mode) < 0) std::abort();
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Attention: compute it, see who attends to whom, compare it with somebody else's."};
  app.set_version_flag("--version", std::string("qkv ") + qkv::version());
  app.require_subcommand(1);
  app.footer(
      "qkv COMMAND --help shows the options of a command, with examples.\n"
      "The environment's QKV_THREADS says how many threads work; absent: as many as there are processors.");
  qkv::cli::Run chosen;
  qkv::cli::add_attend(app, chosen);
  qkv::cli::add_see(app, chosen);
  qkv::cli::add_explain(app, chosen);
  qkv::cli::add_compare(app, chosen);
  qkv::cli::add_train(app, chosen);
  qkv::cli::add_bench(app, chosen);
  qkv::cli::add_completion(app, chosen);

  if (const std::string unknown = unknown_command(app, argc, argv); !unknown.empty())
    return report(app, unknown + " (qkv --help lists them)", kWrongUse);
  try {
    app.parse(argc, argv);
    const auto [text, code] = answer_of(chosen, app);
    return print(app, text, code);
  } catch (const CLI::ParseError& e) {
    return report_wrong_options(app, e);
  } catch (const qkv::ArgumentError& e) {
    return report(app, e.what(), kWrongUse);
  } catch (const qkv::FileError& e) {
    return report(app, e.what(), kWrongUse);
  } catch (const std::bad_alloc&) {
    return report(app, "out of memory: this needs more than is free; take a part of it", kFailure);
  } catch (const std::exception& e) {
    return report(app, e.what(), kFailure);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    open_standard_streams();
    std::signal(SIGXFSZ, SIG_IGN);  // a file that grows past `ulimit -f` is an error of write(), which says so
    return run(argc, argv);
  } catch (...) {  // while reporting
    return kFailure;
  }
}
