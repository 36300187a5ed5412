// What qkv see shows beside a head's heat map: rows, grids, sentences, scales.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include <nlohmann/json.hpp>

#include "qkv/bar.h"
#include "qkv/command_fixture.h"
#include "qkv/fold.h"
#include "qkv/labels.h"
#include "qkv/layer_of_file.h"
#include "qkv/see.h"
#include "qkv/shade.h"

namespace qkv::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class See : public Command {
 protected:
  std::string see(const std::string& arguments, const std::string& variables = "") const {
    return output_of("see " + arguments, variables);
  }
};

TEST_F(See, ARowIsItsKeysAsSortedBars) {
  const float w[] = {0.1F, 0.6F, 0.3F, 0.0F};
  write_npy(file("w.npy"), View<const float>(w, {1, 4}));
  EXPECT_EQ(see(file("w.npy") + " --row 0 --tokens q --key-tokens 'the,cat,sat,on'"),
            "head 0, query q(0): whom it looks at (weights from the file)\n"
            "\n"
            "key     weight\n"
            "cat(1)  0.6000  ████████████████████████████████████████\n"
            "sat(2)  0.3000  ████████████████████\n"
            "the(0)  0.1000  ██████▋\n");
  EXPECT_THAT(see(file("w.npy") + " --row 0 --top 1", "LC_ALL=C"),
              AllOf(HasSubstr("1    0.6000  ########################################\n"),
                    HasSubstr("2 more keys share 0.4000")));
}

TEST_F(See, ARowSaysWhatIsHiddenAndWhatTheSinkTakes) {
  const std::string row = "--q '1,2;2,1' --k '2,1;1,2' --row 0";
  EXPECT_THAT(see(row + " --causal --zero-key"),
              AllOf(HasSubstr("the sink takes 0.0558\n"), HasSubstr("of its keys 1 hidden by causal\n")));
  EXPECT_THAT(see(row + " --keep-mask '0,0;1,1'"), HasSubstr("It sees no key.\n"));
  const auto json = nlohmann::json::parse(see(row + " --json"));
  EXPECT_NEAR(json["keys"][0]["weight"].get<double>(), 0.6697615493266568, 1e-15);
  EXPECT_EQ(json["keys"][0]["key"], 1);
}

TEST_F(See, AGridHasEveryHeadWithItsEntropy) {
  const std::string text = see(kSample + " --grid");
  for (int layer = 0; layer < 6; ++layer) EXPECT_THAT(text, HasSubstr("layer " + std::to_string(layer) + "\n"));
  EXPECT_THAT(text, AllOf(HasSubstr("7 1.18 "), HasSubstr("linear scale")));
  std::istringstream lines(see(kSample + " --grid", "COLUMNS=40"));
  for (std::string line; std::getline(lines, line) && !line.starts_with("weight");)
    EXPECT_LE(display_width(line), line.starts_with("Heads") ? 100 : 40) << line;
}

TEST_F(See, AGridOfLongInputsSaysHowManyPairsACellHas) {
  Array w(DType::kFloat32, {2, 40, 40});
  static_cast<float*>(w.data())[1600 + 39 * 40 + 39] = 0.75F;
  write_npy(file("w.npy"), w.view());
  const std::string text = see(file("w.npy") + " --grid");
  EXPECT_THAT(text, HasSubstr("weight 0 ' .:-=+*#%@' 0.75, linear scale; a cell is the largest of 3 x 3 pairs\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '@'), 2);  // one in the picture, one in the legend
}

TEST_F(See, LiftIsWeightTimesVisibleKeysAndUniformIsOne) {
  const std::string head = "--q '0;0;0' --k '1;2;3' --causal --scale lift";  // all scores alike: every row is uniform
  EXPECT_THAT(see(head), AllOf(HasSubstr("0  1.0  //  //\n1  1.0 1.0  //\n2  1.0 1.0 1.0\n"),
                               HasSubstr("lift 0.5 to 2, log scale, 1 is a uniform weight; / hidden\n")));
}

TEST_F(See, ScaleIsAWordForColoursAndANumberForScores) {
  const std::string row = "--q '1,2;2,1' --k '2,1;1,2' --row 0";
  EXPECT_THAT(see(row + " --scale log --scale 1"), HasSubstr("1    0.7311"));
  expect_refusal("see " + row + " --scale loud", 2, "expected linear, log, lift or a number, got 'loud'");
}

TEST_F(See, PlainIsSentencesOnly) {
  for (const char* what :
       {"--layer 4 --head 7", "--layer 4 --head 7 --row 5", "--grid", "", "--layer 4 --mask --causal"}) {
    const std::string text = see(kSample + " --plain " + what, "COLORTERM=truecolor");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_THAT(line, ::testing::EndsWith(".")) << what;
      EXPECT_THAT(line, AllOf(Not(HasSubstr("  ")), Not(HasSubstr("█")), Not(HasSubstr("\x1b")))) << what;
    }
  }
  EXPECT_THAT(see(kSample + " --plain --layer 4 --head 7"),
              HasSubstr("\nbad(5) looks at not(4) 0.56, was(3) 0.25, [CLS](0) 0.13; 10 more keys share 0.06.\n"));
}

TEST_F(See, APictureIsWrittenWithACaption) {
  EXPECT_EQ(see(kSample + " --layer 4 --head 7 --png " + file("h.png")),
            file("h.png") +
                ": 688 x 656 pixels. layer 4, head 7: rows from the top are queries 0 to 12, columns from the left "
                "keys 0 to 12; weight from 0 (dark blue) to 0.947 (yellow), linear scale.\n");
  EXPECT_THAT(io::bytes_of(file("h.png")), StartsWith("\x89PNG\r\n"));
  const auto json = nlohmann::json::parse(see(kSample + " --json --grid --scale lift --png " + file("all.png")));
  EXPECT_EQ(json["height"], 6 * (13 * 7 + 16) + 16);
  EXPECT_THAT(json["caption"].get<std::string>(),
              StartsWith("layers 0 to 5 from the top, heads from the left; lift from"));
}

TEST_F(See, APictureThatCannotBeDrawnLeavesNoFile) {
  expect_refusal("see " + kSample + " --layer 4 --head 7 --mask --png " + file("x.png"), 2,
                 "leave --mask and --row out");
  expect_refusal("see " + kSample + " --layer 4 --head 7 --png /nowhere/x.png", 2, "/nowhere/x.png");
  write_npy(file("none.npy"), Array(DType::kFloat32, {2, 0, 3}).view());
  expect_refusal("see " + file("none.npy") + " --png " + file("x.png"), 2, "nothing to draw");
  EXPECT_FALSE(std::filesystem::exists(file("x.png")));
  expect_refusal("see " + kSample + " --png " + file("x.txt"), 2, "ends in .png");
  expect_refusal("see " + kSample + " --html " + file("x.txt"), 2, "ends in .html or .htm");
  EXPECT_FALSE(std::filesystem::exists(file("x.txt")));
}

TEST_F(See, WrongUseIsCodeTwoAndOneLine) {
  expect_refusal("see " + kSample + " --row 5", 2, "--row: say of which head");
  expect_refusal("see " + kSample + " --layer 4 --head 7 --row 13", 2, "--row 13: expected 0 to 12");
}

TEST_F(See, WithoutAnyWeightSentencesEndOnce) {
  write_npy(file("none.npy"), Array(DType::kFloat32, {1, 0, 0}).view());
  EXPECT_THAT(see(file("none.npy") + " --plain"), Not(HasSubstr("..")));
  EXPECT_THAT(see(file("none.npy")), AllOf(HasSubstr("keys alike.\n"), Not(HasSubstr(".."))));
}

/// Every text of one head and of several, of q and k, with tokens of 200 columns.
std::vector<std::string> texts_with_long_tokens(const Screen& screen) {
  AttentionOptions attention;
  attention.causal = attention.gradients = true;
  for (const char* name : {"q", "k", "v"}) attention.tensors[name] = "1,2;2,1;3,0";
  attention.tensors["dout"] = "1,2;2,1;3,1";
  Progress progress;
  std::vector<Layer> layers;
  layers.push_back(layer_of(Dump(), attention, -1, WeightsFrom::kQueriesAndKeys, progress));
  const Tokens tokens{{std::string(200, 'q'), "q", "q"}, {std::string(200, 'k'), std::string(100, '('), "k"}, ""};
  std::vector<std::string> texts;
  for (const bool plain : {false, true}) {
    SeeOptions o;
    o.plain = plain;
    texts.push_back(plain ? fold(plain_heads(o, layers, cut_tokens(tokens, screen)), screen)
                          : heads_text(o, layers, cut_tokens(tokens, screen), screen));
    texts.push_back(see_text(o, layers, tokens, screen));
    SeeOptions row = o, mask = o, gradient = o, links = o;
    row.row = 0;
    mask.mask = gradient.gradient = links.only_links = true;
    for (const SeeOptions& one : {row, mask, gradient, links}) texts.push_back(see_text(one, layers, tokens, screen));
  }
  SeeOptions between;
  between.between = tokens.keys[0] + "," + tokens.queries[0];
  texts.push_back(see_text(between, layers, tokens, screen));
  return texts;
}

TEST(SeeText, NoLineIsWiderThanTheScreen) {
  for (const int columns : {40, 80, 100}) {
    for (const std::string& text : texts_with_long_tokens({.unicode = true, .columns = columns, .terminal = true})) {
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), columns) << text;
    }
  }
}

TEST(SeeText, LongTokensAreCutIntoAPipeToo) {
  for (const std::string& text : texts_with_long_tokens({.unicode = true, .columns = 100})) {
    if (text.find("Links between") != text.npos) continue;  // a table alone, which is as wide as it is into a pipe
    EXPECT_THAT(text, Not(HasSubstr(std::string(30, 'q'))));
  }
}

TEST_F(See, TakesTokensAndTheirProjections) {
  const std::string x = "--x '1,2,0;0,1,1' --wq '1,0;0,1;1,1' --wk '2,0;0,1;1,1' --heads 2 --head 1";
  EXPECT_EQ(see(x), see("--q '2;2' --k '2;2' --head 0").replace(5, 1, "1"));
}

/// The same picture, whole and as maxima of cells, must have the same largest values.
TEST(Layer, LiftOfALongInputIsThatOfEveryPair) {
  constexpr int64_t kLong = 4100;  // past what is held as a whole
  Array q(DType::kFloat32, {kLong, 2}), k(DType::kFloat32, {kLong, 2});
  for (int64_t n = 0; n < q.size(); ++n) {
    static_cast<float*>(q.data())[n] = std::sin(static_cast<float>(n));
    static_cast<float*>(k.data())[n] = std::cos(0.3F * static_cast<float>(n));
  }
  const io::ScratchFolder folder;
  write_npz(folder / "x.npz", std::vector<NamedTensor>{{"q", q.view()}, {"k", k.view()}});
  AttentionOptions options;
  options.causal = true;
  Progress progress;
  const Layer layer = layer_of(Dump(folder / "x.npz"), options, -1, WeightsFrom::kQueriesAndKeys, progress);
  ASSERT_FALSE(layer.weights());
  const Matrix lift = layer.picture(0, 0, Measure::kLift), weight = layer.picture(0, 0, Measure::kWeight);
  ASSERT_GT(lift.unit, 1);
  for (const int64_t cell : {int64_t{0}, lift.rows / 2, lift.rows - 1}) {
    float largest_lift = 0, largest = 0;
    for (int64_t i = cell * lift.unit; i < std::min(kLong, (cell + 1) * lift.unit); ++i) {
      const std::vector<double> row = layer.row(0, 0, i);
      for (int64_t j = 0; j < lift.unit; ++j) {
        largest = std::max(largest, static_cast<float>(row[static_cast<size_t>(j)]));
        largest_lift =
            std::max(largest_lift, static_cast<float>(row[static_cast<size_t>(j)]) * static_cast<float>(i + 1));
      }
    }
    EXPECT_FLOAT_EQ(weight.values[weight.at(cell, 0)], largest);
    EXPECT_FLOAT_EQ(lift.values[lift.at(cell, 0)], largest_lift);
  }
}

TEST(Shade, LiftHasItsMiddleAtOneAndEndsAsFarOnBothSides) {
  const Shade shade({0, 8}, 100, Scale::kLift);
  EXPECT_EQ(shade.place(1), 0.5);
  EXPECT_EQ(shade.place(8), 1);
  EXPECT_EQ(shade.place(0.125F), 0);
  EXPECT_EQ(shade.place(0), 0);
  EXPECT_EQ(shade.darkest(), 0.125F);
}

TEST(Bar, WhatIsThereIsSeen) {
  const Screen paper, rich{ColorDepth::kNone, true, 80, 24};
  EXPECT_EQ(bar(0, 10, rich), "");
  EXPECT_EQ(bar(1e-9, 10, rich), "▏");
  EXPECT_EQ(bar(0.5, 5, rich), "██▌");
  EXPECT_EQ(bar(2, 3, rich), "███");
  EXPECT_EQ(bar(1e-9, 10, paper), "#");
  EXPECT_EQ(bar(std::nan(""), 10, rich), "");
}

}  // namespace
}  // namespace qkv::cli
