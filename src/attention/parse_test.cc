#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "qkv/attention.h"

namespace qkv {
namespace {

struct Decay {
  static constexpr std::string_view kName = "decay";
  float rate = 0;
  auto operator()(auto score, Site at) const { return score - rate * float(at.query - at.key); }
  auto fields() { return std::tie(rate); }
};

struct Every {
  static constexpr std::string_view kName = "every";
  int step = 1, first = 0;
  double unused = 0;
  bool sees(Site at) const { return at.key % step == first; }
  auto fields() { return std::tie(step, first, unused); }
};

struct Impostor {
  static constexpr std::string_view kName = "causal";
  bool sees(Site) const { return true; }
};

Vocabulary own() { return Vocabulary().pattern<Every>().modifier<Decay>(); }

/// The message with which a text is refused, without its head "Attention::parse: ".
std::string refusal(std::string_view text) {
  try {
    return "accepted as " + Attention::parse(text, own()).text();
  } catch (const OptionError& e) {
    const std::string message = e.what(), head = "Attention::parse: ";
    return message.starts_with(head) ? message.substr(head.size()) : "without head: " + message;
  }
}

TEST(Parse, ReadsEveryBuiltInWord) {
  Attention a;
  a.visible(Causal{}).visible(Window{255, 0}).visible(Documents{}).visible(KeepMask{}).visible(IgnoreMask{});
  a.align(Align::kTopLeft).heads(HeadMapping::kTiled).score(SoftCap{30}).score(Alibi{}).score(Bias{}).scale(-0.5);
  a.weights(SinkSoftmax{}).zero_key().dropout(0.25);
  EXPECT_EQ(Attention::parse("causal window:255,0 documents keep_mask ignore_mask align:top_left heads:tiled"
                             " | softcap:30 alibi bias scale:-0.5 | sink_softmax zero_key dropout:0.25"),
            a);
}

TEST(Parse, StagesMayBeAbsent) {
  EXPECT_EQ(Attention::parse("softmax"), Attention());
  EXPECT_EQ(Attention::parse("causal"), Attention().visible(Causal{}));
  EXPECT_EQ(Attention::parse("bias"), Attention().score(Bias{}));
  EXPECT_EQ(Attention::parse("causal | dropout:0.5"), Attention().visible(Causal{}).dropout(0.5));
  EXPECT_EQ(Attention::parse("softcap:2 | sink_softmax"), Attention().score(SoftCap{2}).weights(SinkSoftmax{}));
}

TEST(Parse, ModifiersAndWindowsMayRepeatAndKeepTheirOrder) {
  EXPECT_EQ(Attention::parse("softcap:2 bias softcap:3 | softmax").text(), "softcap:2 bias softcap:3 | softmax");
  EXPECT_EQ(Attention::parse("window:3,-1 window:-1,0 | softmax").text(), "window:3,-1 window:-1,0 | softmax");
}

TEST(Parse, GroupedHeadsAreTheDefault) { EXPECT_EQ(Attention::parse("heads:grouped"), Attention()); }

TEST(Parse, ReadsOwnWords) {
  const Attention a = Attention::parse("every:4,1,2.5 | decay:0.5 bias", own());
  EXPECT_EQ(a, Attention().visible(Every{4, 1, 2.5}).score(Decay{0.5f}).score(Bias{}));
  EXPECT_EQ(a.text(), "every:4,1,2.5 | decay:0.5 bias | softmax");
}

TEST(Parse, RefusesAnUnknownWordAndSuggestsTheNearest) {
  EXPECT_EQ(refusal("casual | softmax"), "column 1: unknown word \"casual\"; did you mean \"causal\"?");
  EXPECT_EQ(refusal("causal | sofcap:30"), "column 10: unknown word \"sofcap\"; did you mean \"softcap\"?");
  EXPECT_EQ(refusal("evry:1,0,0"), "column 1: unknown word \"evry\"; did you mean \"every\"?");
  EXPECT_EQ(refusal("Causal"), "column 1: unknown word \"Causal\"; did you mean \"causal\"?");
}

TEST(Parse, ListsTheWordsWhereNoneIsNear) {
  EXPECT_EQ(
      refusal("bananas"),
      "column 1: unknown word \"bananas\"; known are causal, window, documents, keep_mask, ignore_mask, softcap, "
      "softcaps, scales, alibi, bias, align, heads, scale, softmax, sink_softmax, zero_key, dropout, every, decay; a policy of your own comes "
      "through a Vocabulary");
}

TEST(Parse, RefusesOwnWordsWithoutTheirVocabulary) { EXPECT_THROW(Attention::parse("decay:0.5"), OptionError); }

TEST(Parse, RefusesAVocabularyThatRedefinesAWord) {
  EXPECT_THROW(Attention::parse("softmax", Vocabulary().pattern<Impostor>()), OptionError);
  EXPECT_THROW(Attention::parse("softmax", own().modifier<Decay>()), OptionError);
}

TEST(Parse, RefusesAWordTwiceWhereOnceIsMeant) {
  EXPECT_EQ(refusal("align:top_left align:bottom_right"),
            "column 16: \"align:bottom_right\" after \"align:top_left\"; say it once");
  EXPECT_EQ(refusal("scale:1 scale:1"), "column 9: \"scale:1\" after \"scale:1\"; say it once");
  EXPECT_EQ(refusal("softmax sink_softmax"), "column 9: \"sink_softmax\" after \"softmax\"; say it once");
  EXPECT_EQ(refusal("causal window:1,1 causal"),
            "column 19: \"causal\": \"causal\" is in this attention already; say it once");
  for (const char* text : {"heads:tiled heads:tiled", "zero_key zero_key", "dropout:0 dropout:0", "documents documents",
                           "keep_mask keep_mask", "ignore_mask ignore_mask"}) {
    EXPECT_NE(refusal(text).find("once"), std::string::npos) << text << ": " << refusal(text);
  }
}

TEST(Parse, RefusesAWordInTheWrongStage) {
  EXPECT_EQ(
      refusal("causal softcap:30 | softmax"),
      "column 8: \"softcap:30\" belongs to the score stage, but stands in the visible stage; put it there, the order is "
      "visible | score | weights");
  EXPECT_EQ(
      refusal("softcap:30 | causal"),
      "column 14: \"causal\" belongs to the visible stage, but the score stage stands before it; the order is visible | "
      "score | weights");
  EXPECT_EQ(
      refusal("causal | window:1,1"),
      "column 10: \"window:1,1\" belongs to the visible stage, but the visible stage stands before it; the order is "
      "visible | score | weights");
  EXPECT_NE(refusal("softmax | softmax").find("column 11"), std::string::npos);
  EXPECT_NE(refusal("causal | softcap:1 | softmax | bias").find("column 32"), std::string::npos);
}

TEST(Parse, RefusesWrongArguments) {
  EXPECT_EQ(refusal("window:1"), "column 1: \"window:1\": a number is missing; the word takes more of them");
  EXPECT_EQ(refusal("window"), "column 1: \"window\": a number is missing; the word takes more of them");
  EXPECT_EQ(refusal("window:1,2,3"),
            "column 1: \"window:1,2,3\": \"3\" is left over; the word takes fewer values, or none");
  EXPECT_EQ(refusal("causal:1"), "column 1: \"causal:1\": \"1\" is left over; the word takes fewer values, or none");
  EXPECT_EQ(refusal("causal:"), "column 1: \"causal:\" has no value after its colon; add one or leave the colon out");
  EXPECT_EQ(refusal("window:1,x"), "column 1: \"window:1,x\": \"x\" is not a whole number");
  EXPECT_EQ(refusal("window:1.5,2"), "column 1: \"window:1.5,2\": \"1.5\" is not a whole number");
  EXPECT_EQ(refusal("window:99999999999,0"),
            "column 1: \"window:99999999999,0\": \"99999999999\" is out of range for a whole number");
  EXPECT_EQ(refusal("softcap:+3"), "column 1: \"softcap:+3\": \"+3\" is not a number");
  EXPECT_EQ(refusal("softcap:3e999"), "column 1: \"softcap:3e999\": \"3e999\" is out of range for a number");
  EXPECT_EQ(refusal("align:left"), "column 1: \"align:left\": expected align:top_left or align:bottom_right");
  EXPECT_EQ(refusal("heads"), "column 1: \"heads\": expected heads:grouped or heads:tiled");
  for (const char* text :
       {"window:,1", "window:1,", "window:1,,2", "window:1,2,", "softcap:", "softcap:1,", "scale:0x1", "align",
        "align:", "zero_key:1", "softmax:1", "dropout", "scale:1:2", "bias:x"}) {
    EXPECT_TRUE(refusal(text).starts_with("column 1: ")) << text << ": " << refusal(text);
  }
}

TEST(Parse, RefusesNumbersOutOfTheirRange) {
  for (const char* text : {"softcap:0", "softcap:-1", "softcap:inf", "softcap:nan", "window:-2,0", "window:0,-2",
                           "dropout:1.5", "dropout:-0.1", "dropout:nan", "scale:inf", "scale:nan"}) {
    EXPECT_TRUE(refusal(text).starts_with("column 1: \"" + std::string(text) + "\": "))
        << text << ": " << refusal(text);
  }
}

TEST(Parse, RefusesEmptyStagesAndStraySeparators) {
  EXPECT_EQ(refusal(""), "column 1: the text is empty; plain attention is \"softmax\"");
  EXPECT_EQ(refusal("causal  window:1,1"), "column 8: a space where a word is expected; put one space between words");
  EXPECT_EQ(refusal(" causal"), "column 1: a space where a word is expected; put one space between words");
  EXPECT_EQ(refusal("causal "),
            "column 8: the text ends where a word is expected; drop what comes after the last word");
  EXPECT_EQ(refusal("causal | "),
            "column 10: the text ends where a word is expected; drop what comes after the last word");
  EXPECT_EQ(refusal("| softmax"), "column 1: this stage is empty; leave out an empty stage with its \"|\"");
  EXPECT_EQ(refusal("causal | | softmax"), "column 10: this stage is empty; leave out an empty stage with its \"|\"");
  const std::string stages = "stages are parted by \" | \", with one space on both sides, and a word follows";
  EXPECT_EQ(refusal("causal|softmax"), "column 7: " + stages);
  EXPECT_EQ(refusal("causal |softmax"), "column 7: " + stages);
  EXPECT_EQ(refusal("causal |"), "column 7: " + stages);
  EXPECT_EQ(refusal("causal | softmax |"), "column 17: " + stages);
}

TEST(Parse, ShowsBytesThatAreNoText) {
  EXPECT_TRUE(
      refusal("caus\xC3\xA4l").starts_with("column 1: unknown word \"caus\\xc3\\xa4l\"; did you mean \"causal\"?"));
  EXPECT_TRUE(refusal(std::string_view("a\0b", 3)).starts_with("column 1: unknown word \"a\\x00b\"; "));
  const std::string most = refusal(std::string(100000, 'x'));
  EXPECT_TRUE(most.starts_with("column 1: unknown word \"" + std::string(40, 'x') + "...\"; known are")) << most;
}

// ---- fuzzing ----

/// Parsing either throws OptionError or gives an attention whose text is read back as the same.
void check_any_text(const std::string& text) {
  try {
    const Attention a = Attention::parse(text, own());
    const Attention again = Attention::parse(a.text(), own());
    RC_ASSERT(again.text() == a.text());
    RC_ASSERT(again == a);
  } catch (const OptionError& e) {
    RC_ASSERT(std::string(e.what()).starts_with("Attention::parse: column "));
  }
}

RC_GTEST_PROP(ParseFuzz, AnyBytesAreReadOrRefused, (const std::string& bytes)) { check_any_text(bytes); }

RC_GTEST_PROP(ParseFuzz, AnyMixOfPiecesIsReadOrRefused, ()) {
  const auto pieces =
      *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(std::vector<std::string>{" ",
                                                                                                " ",
                                                                                                " | ",
                                                                                                "|",
                                                                                                ":",
                                                                                                ",",
                                                                                                "causal",
                                                                                                "window",
                                                                                                "documents",
                                                                                                "keep_mask",
                                                                                                "softcap",
                                                                                                "alibi",
                                                                                                "bias",
                                                                                                "scale",
                                                                                                "align:top_left",
                                                                                                "heads:tiled",
                                                                                                "softmax",
                                                                                                "sink_softmax",
                                                                                                "zero_key",
                                                                                                "dropout",
                                                                                                "every",
                                                                                                "decay",
                                                                                                "0",
                                                                                                "-1",
                                                                                                "1",
                                                                                                "7",
                                                                                                "0.5",
                                                                                                "1e30",
                                                                                                "nan",
                                                                                                "inf",
                                                                                                "-",
                                                                                                "e",
                                                                                                "x",
                                                                                                "\xFF",
                                                                                                std::string(1, '\0')}));
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  check_any_text(text);
}

RC_GTEST_PROP(ParseFuzz, AnyDamageToAGoodTextIsReadOrRefused, ()) {
  std::string text =
      "every:4,1,0.5 causal window:255,0 align:bottom_right | softcap:30 decay:0.25 scale:0.5 | sink_softmax dropout:0.1";
  for (int n = *rc::gen::inRange(1, 4); n-- > 0 && !text.empty();) {
    const auto at = size_t(*rc::gen::inRange(0, int(text.size())));
    switch (*rc::gen::inRange(0, 3)) {
      case 0: text.erase(at, 1); break;
      case 1: text[at] = *rc::gen::arbitrary<char>(); break;
      default: text.insert(at, 1, text[size_t(*rc::gen::inRange(0, int(text.size())))]); break;
    }
  }
  check_any_text(text);
}

}  // namespace
}  // namespace qkv
