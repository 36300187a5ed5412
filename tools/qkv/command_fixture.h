// The command as a user runs it, for tests.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "io/test_files.h"
#include "qkv/io.h"

namespace qkv::cli {

inline const std::string kSample = std::string(QKV_SOURCE_DIR) + "/samples/minilm-not-bad.npz";

struct Outcome {
  int code;
  std::string out, err;
};

class Command : public ::testing::Test {
 protected:
  /// Runs `qkv arguments`, not on a terminal, with a UTF-8 locale and 100 columns unless `variables` say otherwise.
  Outcome run(const std::string& arguments, const std::string& variables = "") const {
    const std::string line = "env -u NO_COLOR -u COLORTERM LC_ALL=C.UTF-8 COLUMNS=100 LINES=50 TERM=xterm " +
                             variables + " " + QKV_COMMAND + " " + arguments + " >" + folder_ / "stdout" + " 2>" +
                             folder_ / "stderr";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, io::bytes_of(folder_ / "stdout"),
            io::bytes_of(folder_ / "stderr")};
  }
  /// An exit code with one line on stderr that names the command, and nothing on stdout.
  void expect_refusal(const std::string& arguments, int code, const std::string& message) const {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, code) << arguments << "\n" << o.err;
    EXPECT_THAT(o.err, ::testing::AllOf(::testing::StartsWith("qkv"), ::testing::HasSubstr(message))) << arguments;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_EQ(o.out, "") << arguments;
  }
  /// Standard output of a command that is expected to succeed.
  std::string output_of(const std::string& arguments, const std::string& variables = "") const {
    const Outcome o = run(arguments, variables);
    EXPECT_EQ(o.code, 0) << arguments << "\n" << o.err;
    return o.out;
  }
  /// The same, parsed.
  nlohmann::json json_of(const std::string& arguments) const {
    return nlohmann::json::parse(output_of(arguments + " --json"), nullptr, false);
  }
  std::string file(const std::string& name) const { return folder_ / name; }

  /// {heads, rows, dim} of numbers that differ.
  std::string tensor(const std::string& name, std::vector<int64_t> shape, float seed) const {
    Array a(DType::kFloat32, std::move(shape));
    auto* x = static_cast<float*>(a.data());
    for (int64_t n = 0; n < a.size(); ++n) x[n] = std::sin(seed + 0.7F * static_cast<float>(n));
    write_npy(file(name), a.view());
    return file(name);
  }
  std::string qkv_files(const std::vector<int64_t>& shape) const {
    return "--q " + tensor("q.npy", shape, 1) + " --k " + tensor("k.npy", shape, 2) + " --v " +
           tensor("v.npy", shape, 3);
  }

  io::ScratchFolder folder_;
};

}  // namespace qkv::cli
