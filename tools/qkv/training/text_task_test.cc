#include "qkv/training/text_task.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "qkv/error.h"
#include "qkv/training/model_json.h"

namespace qkv::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class F> std::string refusal(const F& f) {
  try {
    f();
    return "accepted";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Alphabet, NumbersCharactersInTheirOrder) {
  const Alphabet a = Alphabet::of("banané", "t");
  EXPECT_EQ(a.size(), 4);
  EXPECT_THAT(a.encode("nab", "t"), ElementsAre(2, 0, 1));
  EXPECT_EQ(a.decode(3), "é");
  EXPECT_EQ(Alphabet::from(a.json()).encode("é", "t"), a.encode("é", "t"));
}

TEST(Alphabet, TakesEveryByteWhereTokensAreBytes) {
  const Alphabet a = Alphabet::from(Alphabet::bytes().json());
  EXPECT_THAT(a.encode("\xff\n", "t"), ElementsAre(255, 10));
  EXPECT_EQ(a.decode(255), "\xff");
}

TEST(Alphabet, NamesTheByteThatIsNoText) {
  EXPECT_THAT(refusal([] { Alphabet::of("ab\xff", "my.txt"); }),
              HasSubstr("my.txt is no UTF-8 text: byte 2 (0xff) begins no character"));
  EXPECT_THAT(refusal([] { Alphabet::of("\xed\xa0\x80", "t"); }), HasSubstr("byte 0")) << "half of a surrogate pair";
  EXPECT_THAT(refusal([] { Alphabet::of("ab", "t").encode("abc", "the prompt"); }),
              HasSubstr("the prompt has the character U+0063 at byte 2, which the model does not know"));
  EXPECT_THROW(Alphabet::of("ab", "t").decode(2), OptionError);
  EXPECT_THROW(Alphabet::from(3), FileError);
}

const std::string kText = [] {
  std::string text;
  for (int n = 0; n < 200; ++n)
    text += "line " + std::to_string(n * 37 % 1000) + (n % 3 ? " of the text\n" : "; and so on\n");
  return text;
}();

TextOptions small(nn::Positions positions = nn::Positions::kLearned) {
  return {
      .file = "t", .batch = 4, .model = {.context = 16, .width = 32, .layers = 2, .heads = 2, .positions = positions}};
}

TEST(TextTask, NeedsATextThatIsLongerThanAPieceOnBothSides) {
  EXPECT_THAT(refusal([] { TextTask(std::string(100, 'a'), small(), 1); }),
              HasSubstr("t has 100 tokens, of which 10 are held out; a context of 16 needs at least 17 of both"));
  EXPECT_THAT(refusal([] { TextTask("", small(), 1); }), HasSubstr("t has 0 tokens"));
  TextOptions o = small();
  o.held_out = 1;
  EXPECT_THAT(refusal([&] { TextTask(kText, o, 1); }), HasSubstr("the held-out share is 1"));
}

TEST(TextTask, BatchesAreAFunctionOfSeedAndNumber) {
  TextTask a(kText, small(), 1), b(kText, small(), 1);
  nn::Tape quiet({.training = false});
  const auto loss = [&](TextTask& t, uint64_t seed, uint64_t batch) {
    return *t.loss(quiet, seed, batch).value().as<const double>().data;
  };
  loss(a, 1, 0), loss(a, 1, 1);
  EXPECT_EQ(loss(a, 1, 2), loss(b, 1, 2));
  EXPECT_NE(loss(a, 1, 2), loss(a, 1, 3));
  EXPECT_NE(loss(a, 1, 2), loss(a, 2, 2));
}

class EveryPosition : public testing::TestWithParam<const char*> {};

TEST_P(EveryPosition, LearnsEightSequencesByHeart) {
  TextOptions o = small(positions_of(GetParam()));
  o.overfit = 8;
  TextTask task(kText, o, 1);
  const nn::Trained t =
      nn::train(task, {.steps = 200,
                       .schedule = {.kind = nn::ScheduleKind::kCosine, .peak = 0.01, .warmup = 10, .steps = 200},
                       .evaluate_every = 200});
  EXPECT_LT(t.last.at("loss"), 0.05 * std::log(double(task.alphabet().size()))) << GetParam();
}
INSTANTIATE_TEST_SUITE_P(All, EveryPosition, testing::Values("none", "sinusoidal", "learned", "rope", "alibi", "t5"),
                         [](const auto& each) { return std::string(each.param); });

TEST(TextTask, AModelComesBackFromItsFile) {
  const std::string folder = testing::TempDir() + "qkv_text_task_" + std::to_string(::getpid());
  TextOptions o = small(nn::Positions::kRotary);
  o.model.attention = {Attention::parse("window:7,0"), Attention::parse("softcap:20")};
  TextTask task(kText, o, 1);
  nn::train(task, {.steps = 3, .evaluate_every = 3, .folder = folder});
  const auto again = TextTask::load(folder + "/best.safetensors");
  EXPECT_EQ(again->configuration(), task.configuration());
  nn::Tape quiet({.training = false});
  const auto ids = task.alphabet().encode("line 37", "t");
  const View<const int32_t> view(ids.data(), {1, int64_t(ids.size())});
  const auto logits = [&](TextTask& t) {
    const nn::Variable y = t.model().logits(quiet, view);
    const auto* first = y.value().as<const float>().data;
    return std::vector<float>(first, first + y.layout().size());
  };
  EXPECT_EQ(logits(task), logits(*again));
  std::filesystem::remove_all(folder);
}

TEST(ModelJson, RefusesWhatCannotBeMeant) {
  const nlohmann::json good = json_of(small().model);
  EXPECT_EQ(json_of(language_model_options(good)), json_of(small().model));
  for (const auto& [key, value] : std::vector<std::pair<const char*, nlohmann::json>>{{"width", "wide"},
                                                                                      {"width", -1},
                                                                                      {"layers", int64_t{1} << 40},
                                                                                      {"positions", "nowhere"},
                                                                                      {"attention", {"nonsense"}},
                                                                                      {"norm", 3}}) {
    nlohmann::json bad = good;
    bad[key] = value;
    EXPECT_THROW(language_model_options(bad), FileError) << key;
    bad.erase(key);
    EXPECT_THROW(language_model_options(bad), FileError) << key;
  }
}

}  // namespace
}  // namespace qkv::cli
