#include "qkv/token_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "qkv/error.h"

namespace qkv::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
constexpr auto kByteLevel = TokenScheme::kByteLevel;
constexpr auto kMetaspace = TokenScheme::kMetaspace;

TEST(TokenText, ByteLevelSymbolsAreBytes) {
  EXPECT_THAT(display_labels({"ĠMurray", "Ã¡n", "Ġthe", "Ċ", "plain"}, {}, kByteLevel),
              ElementsAre(" Murray", "án", " the", "\n", "plain"));
}

TEST(TokenText, EveryByteHasItsSymbol) {
  std::string seen;
  for (int c = 0x21; c < 256 + 68; ++c) {
    if (c == 0x7F || (c >= 0x80 && c <= 0xA0) || c == 0xAD) continue;
    const char two[] = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    seen += token_bytes(c < 0x80 ? std::string(1, static_cast<char>(c)) : std::string(two, 2), kByteLevel);
  }
  ASSERT_EQ(seen.size(), 256U);
  std::sort(seen.begin(), seen.end(), [](char a, char b) { return static_cast<uint8_t>(a) < static_cast<uint8_t>(b); });
  for (int n = 0; n < 256; ++n) EXPECT_EQ(static_cast<uint8_t>(seen[static_cast<size_t>(n)]), n);
}

TEST(TokenText, MetaspaceMarksAreSpacesAndBytesAreBytes) {
  EXPECT_THAT(display_labels({"▁the", "▁", "cat", "<0x41>", "<0xZZ>", "<0x4>"}, {}, kMetaspace),
              ElementsAre(" the", " ", "cat", "A", "<0xZZ>", "<0x4>"));
  EXPECT_EQ(display_text({"<0xE2>", "<0x82>", "<0xAC>"}, {}, kMetaspace), "€");
}

TEST(TokenText, HalfACharacterIsShownAsBytesAndWholeTogether) {
  EXPECT_THAT(display_labels({"â", "Ń", "¢"}, {}, kByteLevel), ElementsAre("⟨e2⟩", "⟨ad⟩", "⟨a2⟩"));
  EXPECT_EQ(display_text({"â", "Ń", "¢"}, {}, kByteLevel), "⭢");
}

TEST(TokenText, PlainTokensStayAsTheyAre) {
  EXPECT_THAT(display_labels({"Ġ<é>", "Ġa"}, {true}, kByteLevel), ElementsAre("Ġ<é>", " a"));
  EXPECT_THAT(display_labels({"日本"}, {}, kByteLevel), ElementsAre("日本"));
}

TEST(TokenText, TokensOfOneCharacterHaveItsRange) {
  EXPECT_THAT(character_ranges("i ⭢ j", {"i", "Ġ", "â", "Ń", "¢", "Ġ", "j"}),
              ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 3), Pair(2, 3), Pair(2, 3), Pair(3, 4), Pair(4, 5)));
  EXPECT_THAT(character_ranges("é a", {"Ã©", "Ġa"}), ElementsAre(Pair(0, 1), Pair(1, 3)));
  EXPECT_THAT(character_ranges("", {""}), ElementsAre(Pair(0, 0)));
}

TEST(TokenText, ASpaceInFrontOfTheTextCoversNothing) {
  EXPECT_THAT(character_ranges("ab c", {"Ġab", "Ġc"}), ElementsAre(Pair(0, 2), Pair(2, 4)));
  EXPECT_THAT(character_ranges(" ab", {"Ġab"}), ElementsAre(Pair(0, 3)));
}

TEST(TokenText, RefusesTokensOfAnotherText) {
  EXPECT_THROW(character_ranges("abc", {"abd"}), OptionError);
  EXPECT_THROW(character_ranges("abc", {"ab"}), OptionError);
  EXPECT_THROW(character_ranges("abc", {"abc", "d"}), OptionError);
}

TEST(TokenText, HtmlHasNoTags) {
  EXPECT_EQ(html_text("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
  EXPECT_EQ(html_text("<script>x</script>"), "&lt;script&gt;x&lt;/script&gt;");
}

TEST(TokenText, RowsAreTheLastTokens) {
  const AxisLabels labels = axis_labels({"a", "b", "c"}, 2, 3);
  EXPECT_THAT(labels.rows, ElementsAre("b", "c"));
  EXPECT_THAT(labels.columns, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(axis_labels({"a"}, 0, 1).rows.empty());
  EXPECT_THROW(axis_labels({"a", "b"}, 3, 2), ShapeError);
  EXPECT_THROW(axis_labels({"a", "b"}, 1, 3), ShapeError);
  EXPECT_THROW(axis_labels({"a", "b"}, 1, 1), ShapeError);
  EXPECT_THROW(axis_labels({"a", "b"}, -1, 2), ShapeError);
}

}  // namespace
}  // namespace qkv::cli
