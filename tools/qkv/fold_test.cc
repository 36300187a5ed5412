#include "qkv/fold.h"

#include <gtest/gtest.h>

namespace qkv::cli {
namespace {

Screen terminal(int columns) { return {.columns = columns, .terminal = true}; }

TEST(Fold, CutsLongLinesAtSpaces) {
  EXPECT_EQ(fold("who attends to whom\nin ten\n", terminal(10)), "who\nattends to\nwhom\nin ten\n");
}

TEST(Fold, GoesOnUnderTheIndentation) { EXPECT_EQ(fold("   a bb ccc dddd", terminal(8)), "   a bb\n   ccc\n   dddd"); }

TEST(Fold, KeepsSpacesInsideALine) { EXPECT_EQ(fold("1. Name   s = q k", terminal(14)), "1. Name   s =\nq k"); }

TEST(Fold, KeepsWordsWhole) { EXPECT_EQ(fold("an internationalisation", terminal(10)), "an\ninternationalisation"); }

TEST(Fold, KeepsCodeWhole) { EXPECT_EQ(fold("in Python: `import numpy`", terminal(12)), "in Python:\n`import numpy`"); }

TEST(Fold, CountsColumnsNotBytes) {
  EXPECT_EQ(fold("机器 学习", terminal(9)), "机器 学习");
  EXPECT_EQ(fold("\x1b[1mhead\x1b[0m 7", terminal(6)), "\x1b[1mhead\x1b[0m 7");
}

TEST(Fold, LeavesColouredSpacesTogether) {
  EXPECT_EQ(fold("0 \x1b[48;5;4m \x1b[48;5;9m \x1b[0m 1, so", terminal(6)),
            "0 \x1b[48;5;4m \x1b[48;5;9m \x1b[0m\n1, so");
}

TEST(Fold, CutsBoldText) { EXPECT_EQ(fold("\x1b[1mwho attends\x1b[0m", terminal(8)), "\x1b[1mwho\nattends\x1b[0m"); }

TEST(Fold, LeavesAPipeAsItIs) { EXPECT_EQ(fold("who attends to whom", {.columns = 10}), "who attends to whom"); }

}  // namespace
}  // namespace qkv::cli
