// run_cases FILE... [--json]: runs case files. Exit codes: 0 all passed, 1 an entry failed, 2 wrong use or a bad file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "run_cases/runner.h"

namespace {

using run_cases::Verdict;

constexpr int kWrongUse = 2;

struct Counts {
  int passed = 0, failed = 0, unsupported = 0;

  void add(Verdict verdict) {
    ++(verdict == Verdict::kPass ? passed : verdict == Verdict::kFail ? failed : unsupported);
  }
};

std::string line_of(const run_cases::Outcome& o) {
  if (o.detail.empty()) return fmt::format("{} {}", name(o.verdict), o.id);
  return fmt::format("{} {}: {}", name(o.verdict), o.id, o.detail);
}

struct Report {
  std::string text;
  run_cases::Json entries = run_cases::Json::array();
  Counts counts;

  void add(const std::string& file, const run_cases::Outcome& o) {
    counts.add(o.verdict);
    text += line_of(o) + "\n";
    entries.push_back({{"file", file}, {"id", o.id}, {"result", name(o.verdict)}, {"detail", o.detail}});
  }
  void print(bool as_json) const {
    if (as_json) {
      const run_cases::Json all{{"entries", entries},
                                {"passed", counts.passed},
                                {"failed", counts.failed},
                                {"unsupported", counts.unsupported}};
      // An id may hold bytes that are no UTF-8; they must not keep the report from being written.
      fmt::print("{}\n", all.dump(2, ' ', false, run_cases::Json::error_handler_t::replace));
    } else {
      fmt::print("{}{} passed, {} failed, {} unsupported\n", text, counts.passed, counts.failed, counts.unsupported);
    }
  }
};

int run(int argc, char** argv) {
  CLI::App app{"Runs case files (JSON) through the library and reports each entry as pass, fail or unsupported."};
  std::vector<std::string> files;
  bool as_json = false;
  app.add_option("FILE", files, "case files, schema version 1")->required();
  app.add_flag("--json", as_json, "report as JSON");
  app.footer(
      "Example: scripts/run-cases tests/data/cases/passing.json\n"
      "Exit codes: 0 all passed, 1 an entry failed, 2 wrong use or a bad file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kWrongUse;
  }

  Report report;
  for (const std::string& file : files) {
    for (const run_cases::Outcome& outcome : run_cases::run_file(file)) report.add(file, outcome);
  }
  report.print(as_json);
  return report.counts.failed > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "run_cases: %s\n", e.what());
    return kWrongUse;
  }
}
