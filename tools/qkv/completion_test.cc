// The script as bash runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "io/test_files.h"

namespace qkv::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

class Completion : public ::testing::Test {
 protected:
  /// What bash offers for the last of these words, as it cuts them.
  std::vector<std::string> offered(const std::vector<std::string>& words) const {
    std::string script = "set -u\neval \"$(" + std::string(QKV_COMMAND) + " completion bash)\" || exit 1\nCOMP_WORDS=(";
    for (const std::string& word : words) script += " '" + word + "'";
    script += ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) + "\n_qkv\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
    io::put_bytes(folder_ / "script", script);
    EXPECT_EQ(std::system(("bash " + folder_ / "script" + " >" + folder_ / "out").c_str()), 0);
    std::istringstream lines(io::bytes_of(folder_ / "out"));
    std::vector<std::string> found;
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) found.push_back(line);
    }
    return found;
  }
  io::ScratchFolder folder_;
};

TEST_F(Completion, OffersCommands) {
  EXPECT_THAT(offered({"qkv", ""}), IsSupersetOf({"attend", "see", "compare", "completion", "--help", "--version"}));
  EXPECT_THAT(offered({"qkv", "att"}), ElementsAre("attend"));
}

TEST_F(Completion, OffersOptionsOfTheCommandThatStandsThere) {
  EXPECT_THAT(offered({"qkv", "attend", "model.npz", "--out"}), ElementsAre("--output"));
  EXPECT_THAT(offered({"qkv", "see", "--"}),
              AllOf(IsSupersetOf({"--layer", "--head", "--causal"}), Not(Contains("--output"))));
}

TEST_F(Completion, OffersTheValuesOfAnOption) {
  EXPECT_THAT(offered({"qkv", "attend", "--align", ""}), ElementsAre("top_left", "bottom_right"));
  EXPECT_THAT(offered({"qkv", "attend", "--align", "=", "b"}), ElementsAre("bottom_right"));
  EXPECT_THAT(offered({"qkv", "attend", "--align", "="}), ElementsAre("top_left", "bottom_right"));
  EXPECT_THAT(offered({"qkv", "completion", ""}), ElementsAre("bash"));
}

TEST_F(Completion, LeavesFilesToBash) { EXPECT_THAT(offered({"qkv", "attend", "mod"}), IsEmpty()); }

}  // namespace
}  // namespace qkv::cli
