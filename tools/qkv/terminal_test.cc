#include "qkv/terminal.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "qkv/colormap.h"

namespace qkv::cli {
namespace {

Screen screen_with(std::map<std::string, std::string> variables, bool terminal, ColorWhen when = ColorWhen::kAuto,
                   int columns = 0) {
  Surroundings s{[&](const char* name) -> const char* {
                   const auto at = variables.find(name);
                   return at == variables.end() ? nullptr : at->second.c_str();
                 },
                 terminal, columns, 0};
  return screen_of(s, when);
}

TEST(Terminal, ColoursOnlyWhereSomebodyCanSeeThem) {
  EXPECT_EQ(screen_with({{"TERM", "xterm-256color"}}, true).colors, ColorDepth::k256);
  EXPECT_EQ(screen_with({{"TERM", "xterm"}, {"COLORTERM", "truecolor"}}, true).colors, ColorDepth::kTrue);
  EXPECT_EQ(screen_with({{"TERM", "xterm-direct"}}, true).colors, ColorDepth::kTrue);
  EXPECT_EQ(screen_with({{"TERM", "xterm"}, {"COLORTERM", "truecolor"}}, false).colors, ColorDepth::kNone);
  EXPECT_EQ(screen_with({{"TERM", "dumb"}, {"COLORTERM", "truecolor"}}, true).colors, ColorDepth::kNone);
  EXPECT_EQ(screen_with({{"COLORTERM", "truecolor"}}, true).colors, ColorDepth::kNone);
}

TEST(Terminal, ATerminalOfFewColoursGetsNone) {
  for (const char* term : {"vt100", "vt220", "linux", "ansi", "xterm-16color", "rxvt", "cons25"}) {
    EXPECT_EQ(screen_with({{"TERM", term}}, true).colors, ColorDepth::kNone) << term;
    EXPECT_EQ(screen_with({{"TERM", term}, {"COLORTERM", "24bit"}}, true).colors, ColorDepth::kTrue) << term;
    EXPECT_EQ(screen_with({{"TERM", term}}, true, ColorWhen::kAlways).colors, ColorDepth::k256) << term;
  }
  for (const char* term : {"xterm", "screen", "tmux", "xterm-kitty", "rxvt-unicode-256color", "screen.xterm-256color"})
    EXPECT_EQ(screen_with({{"TERM", term}}, true).colors, ColorDepth::k256) << term;
}

TEST(Terminal, NoColorIsRespectedWhereItIsNotEmpty) {
  EXPECT_EQ(screen_with({{"TERM", "xterm"}, {"NO_COLOR", "1"}}, true).colors, ColorDepth::kNone);
  EXPECT_EQ(screen_with({{"TERM", "xterm"}, {"NO_COLOR", ""}}, true).colors, ColorDepth::k256);
}

TEST(Terminal, TheOptionComesBeforeTheVariable) {
  EXPECT_EQ(screen_with({{"TERM", "xterm"}, {"NO_COLOR", "1"}}, false, ColorWhen::kAlways).colors, ColorDepth::k256);
  EXPECT_EQ(screen_with({{"TERM", "xterm"}, {"COLORTERM", "24bit"}}, true, ColorWhen::kNever).colors,
            ColorDepth::kNone);
}

TEST(Terminal, WhoeverAlwaysWantsColoursGetsThoseOfColorterm) {
  EXPECT_EQ(screen_with({{"COLORTERM", "truecolor"}}, false, ColorWhen::kAlways).colors, ColorDepth::kTrue);
  EXPECT_EQ(screen_with({}, false, ColorWhen::kAlways).colors, ColorDepth::k256);
}

TEST(Terminal, SizeIsThatOfTheVariablesThenOfTheTerminal) {
  EXPECT_EQ(screen_with({{"COLUMNS", "120"}}, true, ColorWhen::kAuto, 90).columns, 120);
  EXPECT_EQ(screen_with({}, true, ColorWhen::kAuto, 90).columns, 90);
  EXPECT_EQ(screen_with({}, false).columns, 100);
  EXPECT_EQ(screen_with({{"COLUMNS", "-5"}}, false).columns, 100);
  EXPECT_EQ(screen_with({{"COLUMNS", "1"}}, false).columns, 20);
  EXPECT_EQ(screen_with({{"COLUMNS", "99999999999999999999"}}, false).columns, 100);
}

TEST(Terminal, BlockElementsNeedAUtf8Locale) {
  EXPECT_TRUE(screen_with({{"LANG", "de_DE.UTF-8"}}, true).unicode);
  EXPECT_TRUE(screen_with({{"LANG", "C"}, {"LC_ALL", "C.utf8"}}, true).unicode);
  EXPECT_FALSE(screen_with({{"LANG", "de_DE.UTF-8"}, {"LC_ALL", "C"}}, true).unicode);
  EXPECT_FALSE(screen_with({}, true).unicode);
}

TEST(Terminal, TheNearestOf256ColoursIsNear) {
  EXPECT_EQ(nearest_of_256({0, 0, 0}), 16);
  EXPECT_EQ(nearest_of_256({255, 255, 255}), 231);
  EXPECT_EQ(nearest_of_256({255, 0, 0}), 196);
  EXPECT_EQ(nearest_of_256({128, 128, 128}), 244);
}

TEST(Colormap, GoesFromDarkToBrightWithoutAStepBack) {
  double before = -1;
  for (int n = 0; n <= 100; ++n) {
    const Rgb c = cividis(n / 100.0);
    const double luma = 0.2126 * c.r + 0.7152 * c.g + 0.0722 * c.b;
    EXPECT_GT(luma, before - 0.5) << n;  // rounding to bytes
    before = luma;
  }
  EXPECT_EQ(cividis(-1), cividis(0));
  EXPECT_EQ(cividis(2), cividis(1));
  EXPECT_EQ(readable_on(cividis(0)), (Rgb{255, 255, 255}));
  EXPECT_EQ(readable_on(cividis(1)), (Rgb{0, 0, 0}));
}

TEST(Colormap, IsTheCividisThatOthersDrawWith) {  // #00224e and #fee838 are what matplotlib's to_hex() says
  EXPECT_EQ(cividis(0), (Rgb{0x00, 0x22, 0x4E}));
  EXPECT_EQ(cividis(127 / 255.0), (Rgb{0x7C, 0x7B, 0x78}));
  EXPECT_EQ(cividis(1), (Rgb{0xFE, 0xE8, 0x38}));
}

TEST(Colormap, TheDivergingOneIsPalestInTheMiddle) {
  const auto luma = [](Rgb c) { return 0.2126 * c.r + 0.7152 * c.g + 0.0722 * c.b; };
  for (int n = 1; n <= 100; ++n) {
    EXPECT_LE(luma(diverging(n / 100.0)), luma(diverging((n - 1) / 100.0)) + 0.5) << n;
    EXPECT_LE(luma(diverging(-n / 100.0)), luma(diverging(-(n - 1) / 100.0)) + 0.5) << n;
  }
  EXPECT_EQ(diverging(0), (Rgb{245, 245, 245}));
  EXPECT_GT(diverging(-1).b, diverging(-1).r);
  EXPECT_GT(diverging(1).r, diverging(1).b);
  EXPECT_EQ(diverging(-3), diverging(-1));
}

}  // namespace
}  // namespace qkv::cli
