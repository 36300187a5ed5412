// The command as a user runs it: exit codes, messages, files, what is printed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "io/test_files.h"
#include "qkv/command_fixture.h"
#include "qkv/io.h"
#include "qkv/labels.h"

namespace qkv::cli {
namespace {

using io::bytes_of;
using io::put_bytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(Command, SaysItsVersionAndItsHelp) {
  EXPECT_THAT(run("--version").out, StartsWith("qkv "));
  for (const char* command : {"attend", "see", "explain", "compare"}) {
    const Outcome o = run(std::string(command) + " --help");
    EXPECT_EQ(o.code, 0);
    EXPECT_THAT(o.out, HasSubstr("Examples:\n  qkv " + std::string(command)));
    EXPECT_TRUE(std::all_of(o.out.begin(), o.out.end(), [](unsigned char c) { return c >= ' ' || c == '\n'; }))
        << o.out;
  }
}

TEST_F(Command, WrongUseIsCodeTwoAndOneLine) {
  expect_refusal("", 2, "qkv:");
  expect_refusal("attend --nonsense", 2, "qkv attend:");
  expect_refusal("attend " + kSample, 2, "--output");
  expect_refusal("attend " + kSample + " -o x.txt", 2, "ends in .npz or .npy");
  expect_refusal("attend " + kSample + " --layer 9 -o " + file("x.npz"), 2, "has the layers 0, 1, 2, 3, 4, 5");
  expect_refusal("attend " + kSample + " --layer 0 -o " + file("x.npz") + " --attention nonsense", 2, "nonsense");
  expect_refusal("attend " + kSample + " --layer 0 -o " + file("x.npz") + " --attention softmax --causal", 2,
                 "--attention says the whole formula");
  expect_refusal("attend " + kSample + " --layer 0 -o " + file("x.npz") + " --window 3", 2, "LEFT,RIGHT");
  expect_refusal("attend -o " + file("x.npz"), 2, "q is missing");
  expect_refusal("see " + kSample + " --layer 1 --between bad,not", 2, "say which head");
  expect_refusal("see " + kSample + " --head 1", 2, "say which, with --layer");
  expect_refusal("see " + kSample + " --layer 1 --head 12", 2, "expected 0 to 11");
  expect_refusal("see " + kSample + " --layer 1 --head 1 --batch 1", 2, "--batch 1");
  expect_refusal("see " + kSample + " --layer 1 --head 1 --tokens a,b", 2, "expected 13 tokens");
  expect_refusal("see " + kSample + " --layer 1 --head 1 --between bad,nonsuch --tokens " +
                     std::string("1,2,3,4,5,6,7,8,9,10,11,12,13"),
                 2, "no such tokens");
}

TEST_F(Command, AMaskOfUnclearMeaningIsRefusedUnlessAnotherIsGiven) {
  const Array q(DType::kFloat32, {1, 1, 2, 2}), mask(DType::kInt64, {1, 2}), keep(DType::kBool, {1, 1, 2, 2});
  write_npz(file("m.npz"), std::vector<NamedTensor>{
                               {"q", q.view()}, {"k", q.view()}, {"v", q.view()}, {"attention_mask", mask.view()}});
  write_npy(file("keep.npy"), keep.view());
  expect_refusal("attend " + file("m.npz") + " --quiet -o " + file("x.npz"), 2, "does not say what true means");
  EXPECT_EQ(run("attend " + file("m.npz") + " --keep-mask " + file("keep.npy") + " -o " + file("x.npz")).code, 0);
}

TEST_F(Command, OutputToAClosedStreamIsAFailure) {
  for (const std::string& arguments :
       {"see " + kSample + " --layer 4 --head 7", std::string("--help"), std::string("completion bash")}) {
    const int status = std::system((std::string(QKV_COMMAND) + " " + arguments + " >&- 2>" + file("err")).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << arguments;
    EXPECT_THAT(io::bytes_of(file("err")), ::testing::HasSubstr("standard output cannot be written"));
  }
}

TEST_F(Command, AnUnknownOptionIsNamed) {
  expect_refusal("see " + kSample + " --layr 3", 2, "there is no option --layr");
  expect_refusal("see --layr 3 " + kSample, 2, "there is no option --layr");
}

TEST_F(Command, ATensorThatIsNamedAndMissingIsAskedForByItsOption) {
  expect_refusal("attend " + qkv_files({1, 4, 2}) + " --attention sink_softmax -o " + file("x.npz"), 2, "give --sinks");
  expect_refusal("attend " + qkv_files({1, 4, 2}) + " --heads 3 -o " + file("x.npz"), 2, "--heads");
}

TEST_F(Command, NaNInParametersIsTold) {
  const Outcome o = run("attend " + qkv_files({2, 4, 2}) + " --sinks 1,nan -o " + file("x.npz"));
  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.err, ::testing::HasSubstr("1 of the 2 values of sinks are NaN"));
  expect_refusal("attend " + qkv_files({2, 4, 2}) + " --sinks nan,nan -o " + file("x.npz"), 2, "sinks");
}

TEST_F(Command, ACoarseMaskSaysWhatItsCellsAre) {
  const Outcome o = run("see " + qkv_files({1, 60, 2}) + " --mask --causal", "COLUMNS=40");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, ::testing::HasSubstr("+ some visible, some not; each cell is"));
}

TEST_F(Command, WhatIsMissingIsSaidBeforeAnythingIsRead) {
  const std::vector<float> x(4096, 0.5F);
  write_npz(file("q.npz"), std::vector<NamedTensor>{{"q", View<const float>(x.data(), {1, 1, 64, 64})}});
  std::string bytes = io::bytes_of(file("q.npz"));
  bytes[bytes.size() / 2] = '!';
  io::put_bytes(file("q.npz"), bytes);
  expect_refusal("attend " + file("q.npz") + " -o " + file("x.npz"), 2, "k is missing");
  expect_refusal("attend " + file("q.npz") + " --k " + file("q.npz:q") + " -o " + file("x.npz"), 2, "is damaged");
}

TEST_F(Command, AFileThatCannotBeReadIsCodeTwo) {
  expect_refusal("see /nowhere.npz", 2, "/nowhere.npz");
  put_bytes(file("damaged.npz"), bytes_of(kSample).substr(0, 5000));
  expect_refusal("see " + file("damaged.npz"), 2, "damaged.npz");
  expect_refusal("attend " + kSample + " --layer 0 --bias /nowhere.npy -o " + file("x.npz"), 2, "/nowhere.npy");
}

TEST_F(Command, AMessageIsOneSafeLineWhateverTheFileIsCalled) {
  expect_refusal("see \"$(printf 'a\\nb\\033[31m.npz')\"", 2, "a\\nb\\x1b[31m.npz");
}

TEST_F(Command, AFailedCommandWritesNothingAndKeepsWhatWasThere) {
  put_bytes(file("out.npz"), "before");
  const std::string shapes = "--q " + tensor("q.npy", {2, 3, 4}, 1) + " --k " + tensor("k.npy", {2, 3, 5}, 2) +
                             " --v " + tensor("v.npy", {2, 3, 4}, 3);
  expect_refusal("attend " + shapes + " -o " + file("out.npz"), 2, "k");
  EXPECT_EQ(bytes_of(file("out.npz")), "before");
  EXPECT_EQ(run("attend " + kSample + " -o /nowhere/out.npz").code, 2);
  for (const std::string& name : folder_.files()) EXPECT_THAT(name, Not(HasSubstr("tmp")));
}

TEST_F(Command, AFullDiskIsAFailure) {
  EXPECT_EQ(run("attend " + kSample + " --layer 0 -o " + file("x.npz")).code, 0);
  const std::string line = std::string(QKV_COMMAND) + " see " + kSample + " --links >/dev/full 2>" + file("stderr");
  const int status = std::system(line.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(bytes_of(file("stderr")), HasSubstr("standard output cannot be written"));
}

TEST_F(Command, AttendComputesEveryLayerOfAFile) {
  const Outcome o = run("attend " + kSample + " -o " + file("out.npz") + " --lse --weights --stats --top 3");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("layer 5: q {1, 12, 13, 32}"));
  const Npz ours(file("out.npz")), theirs(kSample);
  for (int layer = 0; layer < 6; ++layer) {
    for (const char* name : {".out", ".weights"}) {
      const std::string key = "layer" + std::to_string(layer) + name;
      const Array a = ours.read(key), b = theirs.read(key);
      ASSERT_EQ(a.shape(), b.shape());
      for (int64_t n = 0; n < a.size(); ++n)
        ASSERT_NEAR(static_cast<const float*>(a.data())[n], static_cast<const float*>(b.data())[n], 2e-6) << key;
    }
  }
  EXPECT_THAT(ours.read("layer0.lse").shape(), ElementsAre(1, 12, 13));
  EXPECT_THAT(ours.read("layer0.top_indices").shape(), ElementsAre(1, 12, 13, 3));
  EXPECT_EQ(ours.names().size(), 6U * 11U);
}

TEST_F(Command, OptionsByNameMeanWhatTheTextMeans) {
  const std::string files = qkv_files({2, 5, 8});
  ASSERT_EQ(run("attend " + files + " -o " + file("a.npz") +
                " --causal --window 2,0 --softcap 5 --scale 0.5 --zero-key --alibi --align top_left")
                .code,
            0);
  ASSERT_EQ(run("attend " + files + " -o " + file("b.npz") +
                " --attention 'causal window:2,0 align:top_left | scale:0.5 softcap:5 alibi | softmax zero_key'")
                .code,
            0)
      << run("attend " + files + " -o " + file("b.npz") +
             " --attention 'causal window:2,0 align:top_left | scale:0.5 softcap:5 alibi | softmax zero_key'")
             .err;
  EXPECT_EQ(bytes_of(file("a.npz")), bytes_of(file("b.npz")));
  ASSERT_EQ(run("attend " + files + " -o " + file("c.npz")).code, 0);
  EXPECT_NE(bytes_of(file("a.npz")), bytes_of(file("c.npz")));
}

TEST_F(Command, ResultsHaveAsManyAxesAsTheQueries) {
  ASSERT_EQ(run("attend " + qkv_files({2, 5, 8}) + " -o " + file("out.npz") + " --lse").code, 0);
  EXPECT_THAT(Npz(file("out.npz")).read("out").shape(), ElementsAre(2, 5, 8));
  EXPECT_THAT(Npz(file("out.npz")).read("lse").shape(), ElementsAre(2, 5));
  ASSERT_EQ(run("attend " + qkv_files({5, 8}) + " -o " + file("out.npy")).code, 0);
  EXPECT_THAT(read_npy(file("out.npy")).shape(), ElementsAre(5, 8));
}

TEST_F(Command, AKeepMaskOfTwoAxesIsPaddingAndThatIsSaid) {
  const std::string files = qkv_files({2, 3, 5, 8});
  Array keep(DType::kBool, {2, 5});
  for (int n = 0; n < 10; ++n) static_cast<bool*>(keep.data())[n] = n != 4 && n != 3;
  write_npy(file("keep.npy"), keep.view());
  const Outcome o = run("attend " + files + " --keep-mask " + file("keep.npy") + " --weights -o " + file("out.npz"));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("keep_mask {2, 5}: taken as {B, S}"));
  const Array weights = Npz(file("out.npz")).read("weights");
  const auto w = weights.view().as<const float>();
  EXPECT_EQ(w(0, 1, 2, 4), 0.0F);
  EXPECT_GT(w(1, 1, 2, 4), 0.0F);
  ASSERT_EQ(run("attend " + files + " --lengths 3,5 --weights -o " + file("same.npz")).code, 0);
  EXPECT_EQ(bytes_of(file("same.npz")), bytes_of(file("out.npz")));
}

TEST_F(Command, JsonIsJson) {
  const auto attend =
      nlohmann::json::parse(run("attend " + kSample + " --layer 2 -o " + file("out.npz") + " --json").out);
  EXPECT_EQ(attend["layers"][0]["layer"], 2);
  EXPECT_EQ(attend["layers"][0]["visible_pairs"], 12 * 13 * 13);
  const auto head = nlohmann::json::parse(run("see " + kSample + " --layer 4 --head 7 --json").out);
  EXPECT_EQ(head["links"][0]["query_token"], "bad");
  EXPECT_EQ(head["links"][0]["key_token"], "not");
  EXPECT_NEAR(head["links"][0]["weight"], 0.558, 5e-4);
  EXPECT_TRUE(head["habit"].is_null());
  const auto heads = nlohmann::json::parse(run("see " + kSample + " --json").out);
  EXPECT_EQ(heads["layers"].size(), 6U);
  EXPECT_EQ(heads["layers"][0]["heads"][2]["habit"], "previous");
  const auto compare = nlohmann::json::parse(run("compare " + kSample + " --json").out);
  EXPECT_EQ(compare["differences"].size(), 12U);
}

TEST_F(Command, SeeDrawsAHeadWithItsTokens) {
  const float w[] = {1, 0, 0, 0.25F, 0.75F, 0, 0.2F, 0.5F, 0.3F};
  write_npy(file("w.npy"), View<const float>(w, {3, 3}));
  const Outcome o = run("see " + file("w.npy") + " --tokens 'the,cat,sat' --top 2");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(
      o.out,
      "head 0: each row is a query and says which keys it looks at (weights from the file)\n"
      "\n"
      "         t   c   s\n"
      "         h   a   a\n"
      "         e   t   t\n"
      "         0   1   2\n"
      "0 the  1.0   .   .\n"
      "1 cat  .25 .75   .\n"
      "2 sat  .20 .50 .30\n"
      "      weight 0 to 1, linear scale\n"
      "\n"
      "Position alone does not explain this head: its favourite place, itself, gets 0.68 of the weight.\n"
      "Entropy 0.53 nats, as if a query looked at 1.9 keys alike. Mean weight on itself 0.68, the previous token 0.38, "
      "the next token 0.00, the first token 0.48, the last token 0.10.\n"
      "\n"
      "Strongest links beyond the usual (without links to itself and the first key)\n"
      " query      key     weight  usual  distance\n"
      "sat(2)  ->  cat(1)   0.500  0.750        -1\n"
      "usual: what other queries of this head give to the same key, or at the same distance (the larger mean)\n");
}

TEST_F(Command, SeeSaysWhichRuleHidesWhat) {
  ASSERT_EQ(run("attend " + qkv_files({1, 4, 8}) + " -o " + file("x.npz")).code, 0);
  const std::vector<Array> arrays = [&] {
    std::vector<Array> a;
    for (const char* name : {"q.npy", "k.npy"}) a.push_back(read_npy(file(name)));
    return a;
  }();
  write_npz(file("qk.npz"), std::vector<NamedTensor>{{"q", arrays[0].view()}, {"k", arrays[1].view()}});
  const Outcome o = run("see " + file("qk.npz") + " --mask --causal --window 1,-1 --lengths 3 --align top_left");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("     0   1   2   3\n"
                               "0    #   a   a   -\n"
                               "1    #   #   a   -\n"
                               "2    b   #   #   -\n"
                               "3    b   b   #   -\n"));
  EXPECT_THAT(o.out, AllOf(HasSubstr("# visible: 6 pairs"), HasSubstr("- no such key (past its length): 4 pairs"),
                           HasSubstr("a hidden by causal: 3 pairs"), HasSubstr("b hidden by window:1,-1: 3 pairs")));
}

TEST_F(Command, TheRulesOfAMaskAreCountedAsJson) {
  const auto json = nlohmann::json::parse(run("see " + kSample + " --layer 0 --mask --causal --json").out);
  EXPECT_EQ(json["rules"][0]["pairs"], 13 * 14 / 2);
  EXPECT_EQ(json["rules"][1]["name"], "causal");
  EXPECT_EQ(json["rules"][1]["hides"], true);
}

TEST_F(Command, ColoursOnlyWhereTheyAreWanted) {
  const std::string see = "see " + kSample + " --layer 4 --head 7";
  EXPECT_THAT(run(see).out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(run(see + " --color=never", "COLORTERM=truecolor").out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(run(see + " --color=always", "COLORTERM=truecolor").out, HasSubstr("\x1b[48;2;"));
  EXPECT_THAT(run(see + " --color=always").out, AllOf(HasSubstr("\x1b[48;5;"), Not(HasSubstr("48;2;"))));
  EXPECT_THAT(run(see, "NO_COLOR=1 COLORTERM=truecolor").out, Not(HasSubstr("\x1b")));
}

TEST_F(Command, TokensCannotActOnTheTerminal) {
  write_npz(file("m.npz"),
            std::vector<NamedTensor>{
                {"weights", View<const float>(std::vector<float>{0.5F, 0.5F, 0.9F, 0.1F}.data(), {2, 2})}});
  put_bytes(file("m.json"), "{\"tokens\": [\"\\u001b]0;owned\\u0007\", \"\\u009b31m\\u202e\\n\"]}");
  for (const char* more : {"", " --json", " --rank weight", " --between '\\x1b]0;owned\\x07'"}) {
    const Outcome o = run("see " + file("m.npz") + more);
    EXPECT_EQ(o.code, 0) << o.err;
    for (const char* bad : {"\x1b", "\x07", "\u009b", "\u202e"}) EXPECT_THAT(o.out, Not(HasSubstr(bad))) << more;
    EXPECT_THAT(o.out, HasSubstr("owned")) << more;
  }
}

TEST_F(Command, AMapFitsTheColumnsThatThereAre) {
  for (int columns : {30, 40, 60, 80, 200}) {
    const Outcome o = run("see " + kSample + " --layer 4 --head 7 --top 1", "COLUMNS=" + std::to_string(columns));
    const size_t first = o.out.find("\n\n") + 2, last = o.out.find(" weight ", first);
    std::istringstream map(o.out.substr(first, o.out.rfind('\n', last) - first));
    for (std::string line; std::getline(map, line);) EXPECT_LE(display_width(line), columns) << line;
  }
}

TEST_F(Command, CompareTellsHowFarAFileIsOff) {
  EXPECT_EQ(run("compare " + kSample + " --tolerance 2e-6").code, 0);
  const Outcome tight = run("compare " + kSample + " --tolerance 1e-9");
  EXPECT_EQ(tight.code, 1);
  EXPECT_THAT(tight.out, HasSubstr("above the tolerance of 1e-09"));
  EXPECT_EQ(run("compare " + kSample + " --causal --tolerance 1e-3").code, 1);
}

TEST_F(Command, CompareFindsANaN) {
  const Npz sample(kSample);
  std::vector<Array> arrays;
  std::vector<NamedTensor> tensors;
  for (const char* name : {"q", "k", "v", "out"}) arrays.push_back(sample.read("layer0." + std::string(name)));
  static_cast<float*>(arrays[3].data())[77] = NAN;
  for (size_t n = 0; n < 4; ++n)
    tensors.push_back({std::string(1, "qkvo"[n]) + (n == 3 ? "ut" : ""), arrays[n].view()});
  write_npz(file("nan.npz"), tensors);
  const Outcome o = run("compare " + file("nan.npz") + " --tolerance 1");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.out, HasSubstr("nan"));
}

TEST_F(Command, AStandardErrorThatCannotBeWrittenChangesNothing) {
  const std::string command = std::string(QKV_COMMAND) + " ";
  const auto code = [](const std::string& line) { return WEXITSTATUS(std::system(line.c_str())); };
  for (const std::string gone : {" 2>/dev/full", " 2>&-"}) {
    const std::string out = file("out.npz");
    std::remove(out.c_str());
    EXPECT_EQ(code(command + "attend " + kSample + " --layer 0 -o " + out + gone), 0) << gone;
    EXPECT_EQ(Npz(out).names().size(), 1U);
    EXPECT_EQ(code(command + "see " + file("absent.npz") + gone), 2) << gone;
    EXPECT_EQ(code(command + "bench --threads 0" + gone), 2) << gone;
  }
}

TEST_F(Command, AHelpThatCannotBeWrittenIsAFailure) {
  for (const std::string option : {"--help", "--version"})
    EXPECT_EQ(WEXITSTATUS(std::system((std::string(QKV_COMMAND) + " " + option + " >/dev/full 2>/dev/null").c_str())),
              1);
}

TEST_F(Command, NamesTheCommandThatThereIsNot) {
  expect_refusal("atend x.npz", 2, "there is no command 'atend'; did you mean 'attend'?");
  expect_refusal("frobnicate", 2, "there is no command 'frobnicate'; there are attend");
}

TEST_F(Command, ComparisonsOfWhatIsNoNumberFail) {
  expect_refusal("compare " + kSample + " --tolerance nan", 2, "--tolerance: expected a number of 0 or more, got nan");
  expect_refusal("compare " + kSample + " --tolerance -1", 2, "--tolerance: expected a number of 0 or more, got -1");
}

TEST_F(Command, SeeRefusesWhatCannotBeWeights) {
  const float negative[] = {0.5F, 0.5F, -0.25F, 1}, sums[] = {0.5F, 0.6F, 0, 1}, nan[] = {0.5F, 0.5F, NAN, 0};
  for (const auto& [x, what] : {std::pair{negative, "there is -0.25 in row [0, 0, 1]"},
                                {sums, "the sum is 1.1 in row [0, 0, 0]"},
                                {nan, "there is nan in row [0, 0, 1]"}}) {
    write_npy(file("w.npy"), View<const float>(x, {2, 2}));
    expect_refusal("see " + file("w.npy"), 2, what);
  }
  write_npy(file("none.npy"), View<const float>(sums, {0, 1, 2, 2}));
  expect_refusal("see " + file("none.npy"), 2, "there is nothing to see: the tensors have no batch entry");
}

TEST_F(Command, SeeOfWeightsTakesNoFormulaAndTheirQueriesStandAtTheirKeys) {
  const float w[] = {0.125F, 0.875F, 0, 0, 0, 0.25F, 0.75F, 0};  // {2 queries, 4 keys}
  write_npy(file("w.npy"), View<const float>(w, {2, 4}));
  expect_refusal("see " + file("w.npy") + " --causal", 2, "are finished: a formula acts on q and k");
  const auto share = [&](const std::string& more) {
    return nlohmann::json::parse(run("see " + file("w.npy") + " --json" + more).out)["layers"][0]["heads"][0]["share"];
  };
  EXPECT_NEAR(share("")["itself"].get<double>(), (0.125 + 0.25) / 2, 1e-6);
  EXPECT_NEAR(share(" --align bottom_right")["previous"].get<double>(), (0.875 + 0.75) / 2, 1e-6);
}

TEST_F(Command, WordsAndNumbersOutOfTheirRangeAreNamed) {
  expect_refusal("see " + kSample + " --color sometimes", 2, "--color: expected auto, always, never, got 'sometimes'");
  expect_refusal("see " + kSample + " --head -1", 2, "--head: expected a whole number of 0 or more, got '-1'");
  const std::string help = run("see --help").out;
  EXPECT_EQ(help.find('\0'), std::string::npos);
  EXPECT_THAT(help, HasSubstr("--color auto|always|never"));
}

TEST_F(Command, AttendWithoutValuesGivesWhatNeedsNone) {
  const std::string given = "attend --q '1,2;2,1' --k '2,1;1,2' -o " + file("o.npz");
  expect_refusal(given, 2, "v is missing");
  EXPECT_EQ(run(given + " --lse --weights").code, 0);
  EXPECT_THAT(Npz(file("o.npz")).names(), ElementsAre("lse", "weights"));
}

TEST_F(Command, AttendSaysWhatIsWrongWithItsOutputBeforeLongWork) {
  const std::string q = tensor("q.npy", {2, 3, 4}, 1), given = "attend --q " + q + " --k " + q + " --v " + q + " -o ";
  expect_refusal(given + q, 2, "it would replace the input");
  expect_refusal(given + file("nowhere/o.npz"), 2, "nowhere/o.npz");
  expect_refusal(given + file("o.npy") + " --lse", 2, "an .npy holds the output alone");
  EXPECT_THAT(folder_.files(), Not(::testing::Contains(StartsWith("o.np"))));
}

TEST_F(Command, AttendNamesTheTensorThatIsWrong) {
  const std::string deep = io::fixture("rank5.npy"), q = tensor("q.npy", {2, 3, 4}, 1);
  expect_refusal("attend --q " + q + " --k " + deep + " --v " + q + " -o " + file("o.npz"), 2,
                 "expected at most four axes {B, H, L, D}; reshape it");
  expect_refusal("attend " + q + " -o " + file("o.npz"), 2, "is one tensor without a name");
  expect_refusal("attend --layer 1 --q " + q + " --k " + q + " --v " + q + " -o " + file("o.npz"), 2,
                 "--layer 1: there is no FILE");
}

TEST_F(Command, SeeReplacesNoInput) {
  const std::string q = tensor("q.npz.npy", {2, 3, 4}, 1);
  put_bytes(file("t.json"), R"(["a", "b", "c"])");
  const std::string before = bytes_of(q);
  const std::string given = "see --q " + q + " --k " + q + " --tokens " + file("t.json");
  for (const char* option : {" --png ", " --html "}) {
    expect_refusal(given + option + q, 2, "it would replace the input");
    expect_refusal(given + option + file("t.json"), 2, "it would replace the input");
  }
  EXPECT_EQ(bytes_of(q), before);
  EXPECT_EQ(bytes_of(file("t.json")), R"(["a", "b", "c"])");
}

TEST_F(Command, MessagesDoNotBeginWithTheLibrarysFunctions) {
  const std::string q = "attend --q '1,2' --k '1,2' --v '1' --quiet -o " + file("out.npz");
  expect_refusal("attend --q '1,2' --k '1' --v '1' -o " + file("out.npz"), 2, "qkv attend: key has head size 1");
  expect_refusal(q + " --attention causl", 2, "qkv attend: column 1: unknown word");
  expect_refusal(q + " --lengths 5", 2, "qkv attend: key_lengths[0] is 5");
  expect_refusal("attend " + kSample + " --layer 9 -o " + file("out.npz"), 2, "qkv attend: --layer 9: ");
  io::put_bytes(file("m.npz"), "PK");
  expect_refusal("see " + kSample + " --head 0 --layer 0 --bias " + file("m.npz"), 2, "qkv see: " + file("m.npz"));
}

TEST_F(Command, NamesOfTensorsStayInFrontOfMessages) {
  expect_refusal("see --q '1,x' --k '1,2'", 2, "qkv see: q: expected a number");
  expect_refusal("see --q '1,2' --k '1,2' --keep-mask 2", 2, "qkv see: keep_mask: expected 0 or 1");
}

}  // namespace
}  // namespace qkv::cli
