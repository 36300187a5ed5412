#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "qkv/attention.h"
#include "tests/support/message.h"

namespace qkv {
namespace {

using testing::message_of;

struct Decay {
  static constexpr std::string_view kName = "decay";
  float rate = 0;
  auto operator()(auto score, Site at) const { return score - rate * float(std::abs(at.query - at.key)); }
  auto fields() { return std::tie(rate); }
};

struct Stripe {
  static constexpr std::string_view kName = "stripe";
  int step = 1;
  bool sees(Site at) const { return (at.query - at.key) % step == 0; }
  auto fields() { return std::tie(step); }
};

struct Listed {
  static constexpr std::string_view kName = "listed";
  Parameter list{"first_list"};
  bool sees(Site at) const { return list.get<bool>(at.column); }
  auto parameters() { return std::tie(list); }
};

struct Nameless {
  bool sees(Site at) const { return at.key % 2 == 0; }
};

Attention parsed(std::string_view text) {
  return Attention::parse(text, Vocabulary().pattern<Stripe>().modifier<Decay>());
}

// ---- text() ----

TEST(AttentionText, OfPlainAttentionIsSoftmax) { EXPECT_EQ(Attention().text(), "softmax"); }

TEST(AttentionText, WritesStagesInOrderAndWordsAsAdded) {
  Attention a;
  a.score(SoftCap{30}).visible(Causal{}).scale(0.125).visible(Window{255, 0}).score(Bias{}).align(Align::kBottomRight);
  a.dropout(0.1).zero_key().weights(SinkSoftmax{}).heads(HeadMapping::kTiled);
  EXPECT_EQ(
      a.text(),
      "causal window:255,0 align:bottom_right heads:tiled | softcap:30 bias scale:0.125 | sink_softmax zero_key dropout:0.1");
}

TEST(AttentionText, LeavesOutEmptyStages) {
  EXPECT_EQ(Attention().visible(KeepMask{}).text(), "keep_mask | softmax");
  EXPECT_EQ(Attention().score(Alibi{}).text(), "alibi | softmax");
}

TEST(AttentionText, WritesNumbersSoThatTheyComeBackExactly) {
  EXPECT_EQ(Attention().score(SoftCap{0.1}).text(), "softcap:0.1 | softmax");
  EXPECT_EQ(Attention().scale(1.0 / 3).text(), "scale:0.3333333333333333 | softmax");
  EXPECT_EQ(parsed(Attention().scale(5e-324).text()).scale(), 5e-324);
}

TEST(AttentionText, OfAPolicyWithoutANameIsRefusedByParse) {
  const std::string text = Attention().visible(Nameless{}).text();
  EXPECT_EQ(text, "(unnamed) | softmax");
  EXPECT_THROW(parsed(text), OptionError);
}

// ---- equality ----

TEST(AttentionEquality, IsThatOfTheFormula) {
  const Attention a = Attention().visible(Causal{}).score(SoftCap{30});
  EXPECT_EQ(a, Attention().score(SoftCap{30}).visible(Causal{})) << "stages do not mix";
  EXPECT_EQ(a, Attention(a));
  EXPECT_NE(a, Attention().visible(Causal{}).score(SoftCap{29}));
  EXPECT_NE(a, Attention(a).align(Align::kTopLeft));
  EXPECT_NE(a, Attention(a).heads(HeadMapping::kTiled));
  EXPECT_NE(a, Attention(a).weights(SinkSoftmax{}));
  EXPECT_NE(a, Attention(a).zero_key());
  EXPECT_NE(a, Attention(a).scale(1));
  EXPECT_NE(a, Attention(a).dropout(0.5));
  EXPECT_NE(Attention().score(SoftCap{30}).score(Bias{}), Attention().score(Bias{}).score(SoftCap{30}))
      << "order counts";
}

TEST(AttentionEquality, ComparesOwnPoliciesByNameAndNumbers) {
  EXPECT_EQ(Attention().visible(Stripe{3}), Attention().visible(Stripe{3}));
  EXPECT_NE(Attention().visible(Stripe{3}), Attention().visible(Stripe{4}));
}

TEST(AttentionEquality, PoliciesWithoutANameAreEqualOnlyToThemselves) {
  const Attention a = Attention().visible(Nameless{});
  EXPECT_EQ(a, Attention(a)) << "a copy shares the policy";
  EXPECT_NE(a, Attention().visible(Nameless{}));
}

TEST(AttentionEquality, SeesWhichTensorAPolicyReads) {
  EXPECT_EQ(Attention().visible(Listed{}), Attention().visible(Listed{}));
  EXPECT_NE(Attention().visible(Listed{}), Attention().visible(Listed{Parameter("second_list")}));
}

// ---- setters ----

TEST(AttentionOptions, AnyFiniteScaleIsLegal) {
  for (double scale : {0.0, -0.5, 1.0, 1e300}) EXPECT_EQ(Attention().scale(scale).scale(), scale);
  EXPECT_EQ(Attention().scale(), std::nullopt);
}

TEST(AttentionOptions, RefuseNumbersOutOfRange) {
  EXPECT_EQ(message_of<OptionError>([] { Attention().scale(NAN); }),
            "Attention::scale: scale is nan; expected a finite number; leave it out for 1 / sqrt(head size)");
  EXPECT_THROW(Attention().scale(INFINITY), OptionError);
  EXPECT_EQ(message_of<OptionError>([] { Attention().dropout(1.5); }),
            "Attention::dropout: p is 1.5; expected 0 to 1, the share of weights that is dropped");
  EXPECT_THROW(Attention().dropout(-0.1), OptionError);
  EXPECT_THROW(Attention().dropout(NAN), OptionError);
  EXPECT_EQ(Attention().dropout(1).dropout(), 1);
}

TEST(AttentionOptions, RefuseAPatternTwiceThatSaysNothingMore) {
  EXPECT_EQ(message_of<OptionError>([] { Attention().visible(Causal{}).visible(Causal{}); }),
            "Attention::visible: \"causal\" is in this attention already; say it once");
  EXPECT_NO_THROW(Attention().visible(Window{3, -1}).visible(Window{-1, 0}));
  EXPECT_NO_THROW(Attention().score(SoftCap{3}).score(SoftCap{3}));
}

TEST(AttentionOptions, RefuseNullPasses) {
  EXPECT_THROW(Attention().add(std::shared_ptr<const passes::Pattern>{}), OptionError);
  EXPECT_THROW(Attention().add(std::shared_ptr<const passes::Score>{}), OptionError);
}

// ---- text and parse are inverse to each other ----

Attention random_attention() {
  using rc::gen::arbitrary;
  const auto chance = [] { return *rc::gen::inRange(0, 3) == 0; };
  const auto number = [](auto low, auto high) { return *rc::gen::inRange(low, high); };
  const auto finite = [] {
    return *rc::gen::suchThat(
        rc::gen::map(arbitrary<uint64_t>(), [](uint64_t bits) { return std::bit_cast<double>(bits); }),
        [](double d) { return std::isfinite(d); });
  };
  Attention a;
  if (chance()) a.visible(Causal{});
  for (int n = number(0, 3); n-- > 0;) a.visible(Window{number(-1, 1 << 30), number(-1, 1 << 30)});
  if (chance()) a.visible(Documents{});
  if (chance()) a.visible(KeepMask{});
  if (chance()) a.visible(IgnoreMask{});
  for (int n = number(0, 2); n-- > 0;) a.visible(Stripe{number(1, 1000)});
  a.align(Align(number(0, 3))).heads(HeadMapping(number(0, 2)));
  for (int n = number(0, 5); n-- > 0;) {
    switch (number(0, 4)) {
      case 0: a.score(SoftCap{std::bit_cast<float>(uint32_t(number(1, 0x7F800000)))}); break;
      case 1: a.score(Alibi{}); break;
      case 2: a.score(Bias{}); break;
      default: a.score(Decay{float(number(-1000, 1000)) / 7}); break;
    }
  }
  if (chance()) a.scale(finite());
  if (chance()) a.weights(SinkSoftmax{});
  if (chance()) a.zero_key();
  if (chance()) a.dropout(double(number(0, 1001)) / 1000);
  return a;
}

RC_GTEST_PROP(AttentionText, IsReadBackAsTheSameAttention, ()) {
  const Attention a = random_attention();
  const std::string text = a.text();
  const Attention again = parsed(text);
  RC_LOG(text);
  RC_ASSERT(again == a);
  RC_ASSERT(again.text() == text);
}

}  // namespace
}  // namespace qkv
