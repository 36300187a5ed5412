// qkv: attention on the command line. Exit codes: 0 fine, 1 a failure or a finding, 2 wrong use.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "qkv/commands.h"
#include "qkv/error.h"
#include "qkv/labels.h"
#include "qkv/version.h"

namespace {

constexpr int kFailure = 1, kWrongUse = 2;

/// "qkv attend: ..." on one line, whatever the message or a file name in it holds.
int report(const CLI::App& app, std::string_view message, int code) {
  std::string who = "qkv";
  for (const CLI::App* command : app.get_subcommands()) who += " " + command->get_name();
  fmt::print(stderr, "{}: {}\n", who, qkv::cli::safe_line(message));
  return code;
}

int report_wrong_options(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  const auto chosen = app.get_subcommands();
  return report(app,
                fmt::format("{} (qkv {}--help lists what there is)", error.what(),
                            chosen.empty() ? "" : chosen.front()->get_name() + " "),
                kWrongUse);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Attention: compute it, see who attends to whom, compare it with somebody else's."};
  app.set_version_flag("--version", std::string("qkv ") + qkv::version());
  app.require_subcommand(1);
  app.footer("qkv COMMAND --help shows the options of a command, with examples.");
  qkv::cli::Run run;
  qkv::cli::add_attend(app, run);
  qkv::cli::add_see(app, run);
  qkv::cli::add_explain(app, run);
  qkv::cli::add_compare(app, run);
  qkv::cli::add_bench(app, run);

  try {
    app.parse(argc, argv);
    const int code = run();
    if (std::fflush(stdout) != 0) return report(app, "standard output cannot be written", kFailure);
    return code;
  } catch (const CLI::ParseError& e) {
    return report_wrong_options(app, e);
  } catch (const qkv::ArgumentError& e) {
    return report(app, e.what(), kWrongUse);
  } catch (const std::bad_alloc&) {
    return report(app, "out of memory; take fewer layers (--layer), or leave --weights out", kFailure);
  } catch (const std::exception& e) {
    return report(app, e.what(), kFailure);
  }
}
