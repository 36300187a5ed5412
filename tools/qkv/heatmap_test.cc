#include "qkv/heatmap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "qkv/labels.h"
#include "qkv/table.h"

namespace qkv::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
const Screen kPaper{ColorDepth::kNone, false, 80, 50};
const Screen kRich{ColorDepth::kTrue, true, 80, 50};

Matrix three_tokens() { return {3, 3, 1, {1.0F, 0.0F, 0.0F, 0.25F, 0.75F, 0.0F, 0.004F, 0.5F, 0.496F}, {}}; }
const AxisLabels kWords{{"not", "bad", "漢字"}, {"not", "bad", "漢字"}};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Columns of a line without its escape sequences.
int columns_of(const std::string& line) {
  std::string bare;
  for (size_t n = 0; n < line.size(); ++n) {
    if (line[n] == '\x1b') n = line.find('m', n);
    else bare += line[n];
  }
  return display_width(bare);
}

TEST(Heatmap, OnPaperIsATableOfNumbers) {
  EXPECT_EQ(render_heatmap(three_tokens(), kWords, Scale::kLinear, kPaper),
            "          n   b\n"
            "          o   a  漢\n"
            "          t   d  字\n"
            "          0   1   2\n"
            "0 not   1.0   .   .\n"
            "1 bad   .25 .75   .\n"
            "2 漢字    . .50 .50\n"
            "       weight 0 to 1, linear scale\n");
}

TEST(Heatmap, InColourEveryCellHasItsNumberAndAColour) {
  const std::string text = render_heatmap(three_tokens(), kWords, Scale::kLinear, kRich);
  EXPECT_THAT(text, HasSubstr("\x1b[48;2;254;232;56m\x1b[38;2;0;0;0m 1.0"));
  EXPECT_THAT(text, HasSubstr("\x1b[48;2;0;34;78m"));
  for (const std::string& line : lines_of(text)) {
    if (line.find('\x1b') == line.npos) continue;
    EXPECT_THAT(line, HasSubstr("\x1b[0m"));
  }
}

TEST(Heatmap, NeverIsWiderThanTheScreen) {
  for (const Screen& screen :
       {kPaper, kRich, Screen{ColorDepth::k256, false, 40, 24}, Screen{ColorDepth::k256, true, 20, 24}}) {
    for (int64_t n : {1, 13, 19, 20, 39, 78, 79, 256, 1000}) {
      Matrix m{n, n, 1, std::vector<float>(static_cast<size_t>(n * n), 0.5F), {}};
      std::vector<std::string> lines = lines_of(render_heatmap(m, {}, Scale::kLinear, screen));
      lines.pop_back();  // the legend may wrap
      for (const std::string& line : lines)
        EXPECT_LE(columns_of(line), screen.columns) << n << " on " << screen.columns;
    }
  }
}

TEST(Heatmap, HalfBlocksHoldTwoRowsALine) {
  Matrix m{64, 64, 1, std::vector<float>(64 * 64, 0.0F), {}};
  m.values[m.at(10, 20)] = 1;
  m.values[m.at(11, 21)] = 1;
  const std::vector<std::string> lines = lines_of(render_heatmap(m, {}, Scale::kLinear, kRich));
  ASSERT_EQ(lines.size(), 1 + 32 + 1 + 1U);  // numbers above and below, and the legend
  EXPECT_THAT(lines[6], StartsWith("10 "));
  EXPECT_THAT(lines[6], HasSubstr("\x1b[38;2;254;232;56m\x1b[48;2;0;34;78m▀\x1b[38;2;0;34;78m\x1b[48;2;254;232;56m▀"));
}

TEST(Heatmap, LabelsStayInSightOfLongMaps) {
  std::vector<std::string> words;
  for (int n = 0; n < 60; ++n) words.push_back("w" + std::to_string(n));
  Matrix m{60, 60, 1, std::vector<float>(60 * 60, 0.0F), {}};
  const std::vector<std::string> lines = lines_of(render_heatmap(m, {words, words}, Scale::kLinear, kRich));
  ASSERT_EQ(lines.size(), 3 + 1 + 30 + 1 + 3 + 1U);
  EXPECT_EQ(lines[0], lines[35]);
  EXPECT_EQ(lines[3], lines[34]);
  EXPECT_THAT(lines[4 + 5], StartsWith("10 w10 "));
  // Of rows that share a cell the first one has its word.
  const std::vector<std::string> reduced =
      lines_of(render_heatmap(m, {words, {}}, Scale::kLinear, {ColorDepth::kNone, false, 30, 20}));
  EXPECT_THAT(reduced[2], StartsWith(" 6 w6 "));
}

TEST(Heatmap, ALinkIsNotLostWhenManyPairsShareACell) {
  Matrix m{1000, 1000, 1, std::vector<float>(1000 * 1000, 0.0F), {}};
  m.values[m.at(777, 333)] = 0.9F;
  const std::string text = render_heatmap(m, {}, Scale::kLinear, kPaper);
  EXPECT_THAT(text, HasSubstr("@"));
  EXPECT_THAT(text, HasSubstr("weight 0 ' .:-=+*#%@' 0.9, linear scale; a cell is the largest of 28 x 14 pairs"));
}

TEST(Heatmap, NumbersCountPairsAlsoWhereTheMatrixIsAReduction) {
  const Matrix m{200, 200, 64, std::vector<float>(200 * 200, 0.5F), {}};
  const std::vector<std::string> lines = lines_of(render_heatmap(m, {}, Scale::kLinear, kPaper));
  EXPECT_THAT(lines[1], StartsWith("    0 @"));
  EXPECT_THAT(lines[lines.size() - 3], StartsWith("12672 @"));
  EXPECT_THAT(lines.back(), HasSubstr("the largest of 384 x 192 pairs"));
}

TEST(Heatmap, ReductionTakesTheLargestAndKeepsNaN) {
  const Matrix m{2, 4, 1, {1, 2, kNaN, 3, 4, 0, 5, 6}, {1, 1, 0, 0, 1, 1, 0, 1}};
  const Matrix small = reduce_by_maximum(m, 2, 2);
  ASSERT_EQ(small.values.size(), 2U);
  EXPECT_EQ(small.values[0], 4);
  EXPECT_TRUE(std::isnan(small.values[1]));
  EXPECT_EQ(small.hidden[0], 1);
  EXPECT_EQ(small.hidden[1], 0);
  EXPECT_TRUE(std::isnan(reduce_by_maximum({1, 3, 1, {1, kNaN, 7}, {}}, 1, 3).values[0]));
}

TEST(Heatmap, HiddenAndNaNLookLikeNothingElse) {
  const Matrix m{1, 3, 1, {0.5F, 0, kNaN}, {0, 1, 0}};
  EXPECT_EQ(render_heatmap(m, {}, Scale::kLinear, kPaper),
            "     0   1   2\n"
            "0  .50  // NaN\n"
            "  weight 0 to 0.5, linear scale; / hidden; ? NaN\n");
}

TEST(Heatmap, TheLogScaleShowsWhatTheLinearOneDrowns) {
  Matrix m{40, 40, 1, std::vector<float>(1600, 0.0F), {}};
  for (int64_t i = 0; i < 40; ++i) m.values[m.at(i, 0)] = 0.97F, m.values[m.at(i, i)] = 0.03F;
  const auto middle = [&](Scale scale) { return lines_of(render_heatmap(m, {}, scale, kPaper))[10]; };
  EXPECT_THAT(middle(Scale::kLinear), Not(HasSubstr("=")));
  EXPECT_THAT(middle(Scale::kLog), HasSubstr("=="));
  EXPECT_THAT(render_heatmap(m, {}, Scale::kLog, kPaper), HasSubstr("log scale"));
}

TEST(Heatmap, NothingToDrawIsSaid) {
  EXPECT_EQ(render_heatmap({0, 5, 1, {}, {}}, {}, Scale::kLinear, kPaper), "nothing to draw: 0 queries, 5 keys\n");
}

TEST(Heatmap, OneColourAndNoRangeIsNoDivisionByZero) {
  for (float v : {0.0F, -1.0F, 1e30F, kNaN}) {
    EXPECT_THAT(render_heatmap({1, 1, 1, {v}, {}}, {}, Scale::kLinear, kRich), EndsWith("\n"));
    EXPECT_THAT(render_heatmap({1, 1, 1, {v}, {}}, {}, Scale::kLog, kRich), EndsWith("\n"));
  }
}

TEST(Heatmap, EveryRowOfLabelsIsAsWideWhateverTheScript) {
  const std::vector<std::string> words = {"a", "漢字漢字漢字漢字漢字", "👩\u200D🚀", "e\u0301", "internationalisation"};
  const Matrix m{5, 5, 1, std::vector<float>(25, 0.5F), {}};
  const std::vector<std::string> lines =
      lines_of(render_heatmap(m, {words, words}, Scale::kLinear, Screen{ColorDepth::kNone, true, 80, 50}));
  for (size_t n = lines.size() - 6; n + 1 < lines.size(); ++n)
    EXPECT_EQ(columns_of(lines[n]), 2 + 16 + 1 + 5 * 4) << lines[n];
}

TEST(Table, ColumnsLineUpInEveryScript) {
  Table table({{"query", Side::kRight}, {"key", Side::kLeft}, {"w", Side::kRight}});
  table.add({"漢字", "a", "0.1"});
  table.add({"bad", "great", "10"});
  EXPECT_EQ(table.text(Screen{}),
            "query  key      w\n"
            " 漢字  a      0.1\n"
            "  bad  great   10\n");
}

TEST(Table, OfANarrowTerminalLeavesColumnsOutAndSaysSo) {
  Table table({{"name", Side::kLeft, Narrow::kCut},
               {"a", Side::kRight, Narrow::kDrop},
               {"b", Side::kRight, Narrow::kFirst},
               {"c", Side::kRight, Narrow::kDrop},
               {"value", Side::kRight}});
  table.add({"attention", "0.25", "0.50", "0.75", "1.234567"});
  const auto at = [&](int columns) { return table.text({.unicode = true, .columns = columns, .terminal = true}); };
  EXPECT_EQ(at(40), table.text(Screen{}));
  EXPECT_EQ(at(36),
            "name          a     c     value\n"
            "attention  0.25  0.75  1.234567\n"
            "(no room for: b)\n");
  EXPECT_EQ(at(25),
            "name          a     value\n"
            "attention  0.25  1.234567\n"
            "(no room for: b, c)\n");
  EXPECT_EQ(at(16),
            "name       value\n"
            "atten…  1.234567\n"
            "(no room for: a,\n"
            "b, c)\n");
  EXPECT_EQ(table.text({.columns = 16}), table.text(Screen{})) << "a pipe";
}

}  // namespace
}  // namespace qkv::cli
