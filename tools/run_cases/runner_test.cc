#include "run_cases/runner.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace run_cases {
namespace {

const std::string kData = QKV_SOURCE_DIR "/tests/data/cases/";

/// "id: detail", of passes "id" alone.
std::vector<std::string> lines_of(const std::vector<Outcome>& outcomes, Verdict verdict) {
  std::vector<std::string> lines;
  for (const Outcome& o : outcomes) {
    if (o.verdict == verdict) lines.push_back(o.id + (o.detail.empty() ? "" : ": " + o.detail));
  }
  return lines;
}

TEST(RunCases, EveryEntryOfTheOwnFilePasses) {
  const auto outcomes = run_file(kData + "passing.json");
  EXPECT_EQ(outcomes.size(), 34U);
  for (const Outcome& o : outcomes) EXPECT_EQ(o.verdict, Verdict::kPass) << o.id << ": " << o.detail;
}

TEST(RunCases, PositionsAndCachesPass) {
  const auto outcomes = run_file(kData + "positions.json");
  EXPECT_EQ(outcomes.size(), 15U);
  for (const Outcome& o : outcomes) {
    const bool known = o.id != "rope_style";
    EXPECT_EQ(o.verdict, known ? Verdict::kPass : Verdict::kUnsupported) << o.id << ": " << o.detail;
  }
}

TEST(RunCases, AFailureNamesThePlaceWhatCameAndWhatWasExpected) {
  const std::vector<std::string> expected{
      "wrong_number: slopes[1]: got 0.00390625 expected 0.5",
      "wrong_nan: out[0,0,1]: got 2 expected nan",
      "wrong_infinity: out[0,0,0]: got 1 expected inf",
      "wrong_shape: out has shape {1, 1, 1, 2}, expected {1, 1, 2, 1}",
      "wrong_size: out has shape {1, 1, 2}, expected {1, 1, 1}",
      "known_wrong: the result is the known wrong one",
      "not_refused: error: the call was accepted, expected \"invalid_argument\"",
      "refused: the call was refused: alibi_slopes: heads is -2; expected 1 or more",
      "wrong_label: labels[1]: got \"b\" expected \"c\"",
      "wrong_verdict: verdict: got \"reject\" expected \"accept\"",
      "wrong_tensor: tensors.h[1]: got \"inf\" expected 2",
      "wrong_count: row_labels: got 1 entries expected 2",
      "wrong_gradient: dk[0,0,1,0]: got 2 expected -2",
      "nothing_expected: malformed: \"expected\" is empty"};
  EXPECT_EQ(lines_of(run_file(kData + "failing.json"), Verdict::kFail), expected);
}

TEST(RunCases, WhatCannotBeRunIsUnsupportedWithItsReason) {
  const std::vector<std::string> expected{"unknown_operation: operation sort", "unknown_option: option \"discard\"",
                                          "unknown_name: the expected \"biases\"",
                                          "random_dropout: dropout in training without \"dropout_keep\"",
                                          "no_dout: the expected \"dv\""};
  EXPECT_EQ(lines_of(run_file(kData + "failing.json"), Verdict::kUnsupported), expected);
}

/// The failure of an entry that stands before a good one.
std::string refusal_of(const std::string& entry) {
  const std::string good = R"({"id": "good", "op": "alibi_slopes", "inputs": {"n_heads": 1}, "options": {}, )"
                           R"("expected": {"slopes": [0.00390625]}, "tol": {"atol": 0, "rtol": 0}})";
  const auto outcomes = run_file(Json::parse(R"({"schema_version": 1, "entries": [)" + entry + ", " + good + "]}"));
  EXPECT_EQ(outcomes.at(1).verdict, Verdict::kPass);
  EXPECT_EQ(outcomes.at(0).verdict, Verdict::kFail);
  return outcomes.at(0).id + ": " + outcomes.at(0).detail;
}

TEST(RunCases, AnEntryThatIsNotOfTheSchemaFailsAndTheOthersRun) {
  const std::string end = R"(, "options": {}, "expected": {"out": [1]}, "tol": {"atol": 0, "rtol": 0}})";
  EXPECT_EQ(refusal_of(R"({"op": "sdpa"})"), "entry 0: malformed: \"id\" is missing");
  EXPECT_EQ(refusal_of(R"({"id": "a", "op": "sdpa"})"), "a: malformed: \"inputs\" is missing");
  EXPECT_EQ(refusal_of(R"({"id": "a", "op": "rollout", "inputs": {"layers": [[1, 2], [3]]})" + end),
            "a: malformed: lists beside each other differ in length");
  EXPECT_EQ(refusal_of(R"({"id": "a", "op": "rollout", "inputs": {"layers": [[1, [2]]]})" + end),
            "a: malformed: a list holds numbers and lists side by side");
  EXPECT_EQ(refusal_of(R"({"id": "a", "op": "rollout", "inputs": {"layers": [[["many"]]]})" + end),
            "a: malformed: expected a number, true, false, \"nan\", \"inf\" or \"-inf\", got \"many\"");
  EXPECT_EQ(refusal_of(R"({"id": "a", "op": "rollout", "inputs": {"layers": [[[null]]]})" + end),
            "a: malformed: null among the inputs");
  EXPECT_EQ(refusal_of(R"({"id": "a", "op": "sdpa", "inputs": {"shapes": {"q": [1, 1, 1, 2]}, "q": [[[[1]]]]})" + end),
            "a: malformed: 1 numbers cannot have the shape {1, 1, 1, 2}");
  EXPECT_EQ(refusal_of(R"({"id": "a", "op": "alibi_slopes", "inputs": {"n_heads": 2000000000})" + end),
            "a: malformed: expected a number up to 1000000, got 2000000000");
  EXPECT_EQ(
      refusal_of(
          R"({"id": "a", "op": "sdpa_strided", "inputs": {"shape": {"q": [1, 1, 1, 3]}, "strides": {"q": [1, 1, 1, 1]},
                           "offset": {"q": 0}, "buffer": {"q": [1, 2], "k": [1], "v": [1]}})" +
          end),
      "a: malformed: q reaches from element 0 to 2 of a buffer of 2");
}

TEST(RunCases, RefusesFilesThatAreNotOfTheSchema) {
  EXPECT_THROW(run_file(kData + "absent.json"), Malformed);
  EXPECT_THROW(run_file(std::string(QKV_SOURCE_DIR "/CMakeLists.txt")), Malformed);
  EXPECT_THROW(run_file(Json::parse("{}")), Malformed);
  EXPECT_THROW(run_file(Json::parse(R"({"schema_version": 2, "entries": []})")), Malformed);
  EXPECT_THROW(run_file(Json::parse(R"({"schema_version": 1, "entries": 3})")), Malformed);
}

TEST(RunCases, ReadsAllNumbersThatTheSchemaHas) {
  const Values v =
      read_values(Json::parse(R"([["nan", "inf", "-inf"], [true, false, null], [9223372036854775807, 0.5, -3]])"));
  EXPECT_EQ(v.shape, (std::vector<int64_t>{3, 3}));
  EXPECT_NE(v.at(0), v.at(0));
  EXPECT_EQ(v.at(3), 1);
  EXPECT_FALSE(v.numbers[5]);
  EXPECT_EQ(int64_t(v.at(6)), 9223372036854775807);
}

/// Files of cases that lie beside the repository, where there are any.
TEST(RunCases, NoEntryOfTheFilesBesideTheRepositoryFails) {
  const std::filesystem::path folder = QKV_SOURCE_DIR "/../shared/cases";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no case files beside the repository";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".json") continue;
    const auto outcomes = run_file(file.path().string());
    EXPECT_GT(lines_of(outcomes, Verdict::kPass).size(), 10U) << file.path();
    EXPECT_EQ(lines_of(outcomes, Verdict::kFail), std::vector<std::string>{}) << file.path();
  }
}

}  // namespace
}  // namespace run_cases
