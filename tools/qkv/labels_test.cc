#include "qkv/labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace qkv::cli {
namespace {

using ::testing::ElementsAre;

TEST(Labels, OrdinaryTokensStayAsTheyAre) {
  for (const char* token :
       {"bad", "##ly", "[CLS]", "Ġthe", "▁der", "naïve", "漢字", "مرحبا", "e\u0301", "👩\u200D🚀", "❤\uFE0F"})
    EXPECT_EQ(safe_text(token), token);
}

TEST(Labels, NothingThatActsOnATerminalGetsThrough) {
  EXPECT_EQ(safe_text("\x1b[31mred"), "\\x1b[31mred");
  EXPECT_EQ(safe_text("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(safe_text("\u009b31m"), "\\x9b31m");              // a C1 control: CSI in eight bits
  EXPECT_EQ(safe_text("\u202Egnp.exe"), "\\u{202e}gnp.exe");  // right-to-left override
  EXPECT_EQ(safe_text("a\u2028b"), "a\\u{2028}b");
  EXPECT_EQ(safe_text(std::string("\0\x7f", 2)), "\\x00\\x7f");
}

TEST(Labels, BytesThatAreNoUtf8AreShownAsBytes) {
  EXPECT_EQ(safe_text("\xE4"), "\\xe4");
  EXPECT_EQ(safe_text("a\xF0\x9F"), "a\\xf0\\x9f");
  EXPECT_EQ(safe_text("\xC0\xAF"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(safe_text("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

TEST(Labels, SpacesAtTheEndsAreSeen) {
  EXPECT_EQ(safe_text(" the"), "␣the");
  EXPECT_EQ(safe_text("  "), "␣␣");
  EXPECT_EQ(safe_text("a b"), "a b");
  EXPECT_EQ(safe_line(" a "), " a ");
}

TEST(Labels, WidthIsWhatTerminalsDraw) {
  EXPECT_EQ(display_width("bad"), 3);
  EXPECT_EQ(display_width("漢字"), 4);
  EXPECT_EQ(display_width("e\u0301"), 1);
  EXPECT_EQ(display_width("👍"), 2);
  EXPECT_EQ(display_width("👩\u200D🚀"), 2);
  EXPECT_EQ(display_width("🇩🇪"), 2);
  EXPECT_EQ(display_width("🇩🇪🇫🇷"), 4);
  EXPECT_EQ(display_width("❤\uFE0F"), 2);
  EXPECT_EQ(display_width(""), 0);
}

TEST(Labels, GraphemesAreWhatAPersonCallsCharacters) {
  EXPECT_THAT(graphemes("ae\u0301👩\u200D🚀漢"), ElementsAre("a", "e\u0301", "👩\u200D🚀", "漢"));
  EXPECT_THAT(graphemes("🇩🇪🇫🇷"), ElementsAre("🇩🇪", "🇫🇷"));
}

TEST(Labels, FitGivesExactlyTheWidth) {
  EXPECT_EQ(fit("bad", 5, Side::kLeft, false), "bad  ");
  EXPECT_EQ(fit("bad", 5, Side::kRight, false), "  bad");
  EXPECT_EQ(fit("wonderful", 5, Side::kLeft, false), "wond…");
  EXPECT_EQ(fit("wonderful", 5, Side::kLeft, true), "wond~");
  EXPECT_EQ(fit("漢字漢字", 4, Side::kLeft, false), "漢… ");
  EXPECT_EQ(fit("漢", 1, Side::kLeft, false), "…");
  EXPECT_EQ(fit("漢", 0, Side::kLeft, false), "");
  for (int width = 0; width < 12; ++width)
    EXPECT_EQ(display_width(fit("a漢👩\u200D🚀e\u0301bcd", width, Side::kRight, false)), width);
}

}  // namespace
}  // namespace qkv::cli
