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
    script += ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) + "\n_qkv " + QKV_COMMAND +
              "\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
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

TEST_F(Completion, OffersEveryClosedChoice) {
  EXPECT_THAT(offered({"qkv", "see", "model.npz", "--scale", ""}), ElementsAre("linear", "log", "lift"));
  EXPECT_THAT(offered({"qkv", "see", "--scale", "=", "lo"}), ElementsAre("log"));
  EXPECT_THAT(offered({"qkv", "explain", "--color", ""}), ElementsAre("auto", "always", "never"));
  EXPECT_THAT(offered({"qkv", "see", "--rank", ""}), ElementsAre("surprise", "weight"));
  EXPECT_THAT(offered({"qkv", "see", "--weight-layout", ""}), ElementsAre("in_out", "out_in"));
}

TEST_F(Completion, OffersOptionsOfACommandOfACommand) {
  EXPECT_THAT(offered({"qkv", "explain", "sc"}), ElementsAre("scaling"));
  EXPECT_THAT(offered({"qkv", "explain", "scaling", "--"}),
              AllOf(IsSupersetOf({"--dims", "--keys", "--draws", "--seed", "--json"}), Not(Contains("--query"))));
  EXPECT_THAT(offered({"qkv", "explain", "--tokens", "scaling", "--q"}), Contains("--query"));
}

TEST_F(Completion, OffersNamesOfExamples) {
  EXPECT_THAT(offered({"qkv", "explain", "--example", "W3"}), ElementsAre("W3", "W3c", "W3p"));
}

TEST_F(Completion, OffersTheLayersOfTheFile) {
  const std::string sample = std::string(QKV_SOURCE_DIR) + "/samples/minilm-not-bad.npz";
  EXPECT_THAT(offered({"qkv", "see", sample, "--layer", ""}), ElementsAre("0", "1", "2", "3", "4", "5"));
  EXPECT_THAT(offered({"qkv", "see", "nothing.npz", "--layer", ""}), IsEmpty());
}

TEST_F(Completion, TakesWordsAsTheyAre) {
  for (const char* word : {"[a,b]", "{}", "%%", "--", "-1,0", "$(exit 3)", ""})
    EXPECT_THAT(offered({"qkv", "see", "--tokens", word, "--rank", "w"}), ElementsAre("weight")) << word;
}

TEST_F(Completion, LeavesFilesToBash) {
  for (const char* begun : {"", "mod"}) {
    EXPECT_THAT(offered({"qkv", "attend", begun}), IsEmpty());
    EXPECT_THAT(offered({"qkv", "explain", begun}), IsEmpty());
    EXPECT_THAT(offered({"qkv", "attend", "--keep-mask", begun}), IsEmpty());
  }
}

}  // namespace
}  // namespace qkv::cli
