#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "qkv/dropout.h"
#include "qkv/error.h"
#include "qkv/models.h"
#include "qkv/optim.h"

namespace qkv::nn {
namespace {

EncoderDecoder::Options tiny(Positions positions, bool shares = true) {
  EncoderDecoder::Options o{.decoder = {.vocabulary = 11,
                                        .context = 9,
                                        .width = 16,
                                        .layers = 2,
                                        .heads = 4,
                                        .key_heads = 2,
                                        .positions = positions,
                                        .has_bias = !shares,
                                        .ties_weights = shares}};
  if (!shares) o.source_vocabulary = 13, o.source_context = 8, o.encoder_layers = 1;
  return o;
}

constexpr Positions kAllPositions[] = {Positions::kNone,   Positions::kSinusoidal, Positions::kLearned,
                                       Positions::kRotary, Positions::kAlibi,      Positions::kT5};

std::vector<int32_t> tokens(int64_t n, int32_t vocabulary, uint32_t which) {
  std::vector<int32_t> ids;
  for (uint32_t i = 0; i < uint32_t(n); ++i)
    ids.push_back(int32_t(philox({i, which, 0, 0}, 7)[0] % uint32_t(vocabulary)));
  return ids;
}

class EncoderDecoderTest : public testing::TestWithParam<Positions> {};

TEST_P(EncoderDecoderTest, GradientsReachEveryParameter) {
  for (const bool shares : {true, false}) {
    EncoderDecoder model(tiny(GetParam(), shares));
    model.initialise(1);
    const auto source = tokens(14, 11, 0), target = tokens(10, 11, 1), next = tokens(10, 11, 2);
    Tape tape;
    tape.backward(model.loss(tape, {.ids = {source.data(), {2, 7}}}, {target.data(), {2, 5}}, {next.data(), {2, 5}}));
    model.visit("", [](const std::string& name, Parameter& p) {
      ASSERT_TRUE(p.is_reached) << name;
      double most = 0;
      const auto* g = static_cast<const float*>(p.gradient.data());
      for (int64_t i = 0; i < p.gradient.size(); ++i) most = std::max(most, std::abs(double(g[i])));
      EXPECT_GT(most, 0) << name;
    });
  }
}

/// The first `rows` rows of entry 1 of logits {2, L, vocabulary}.
std::vector<float> rows_of_entry(const Variable& logits, int64_t rows) {
  const auto* first = static_cast<const float*>(logits.value().data) + logits.shape(1) * logits.shape(2);
  return {first, first + rows * logits.shape(2)};
}

TEST_P(EncoderDecoderTest, PaddingChangesNoBitOfTheRest) {
  EncoderDecoder model(tiny(GetParam()));
  model.initialise(2);
  Tape tape({.training = false});
  const auto text = tokens(32, 11, 3);
  const auto run = [&](int64_t source_length, int64_t target_length, int32_t padding) {
    std::vector<int32_t> source(size_t(2 * source_length), padding), target(size_t(2 * target_length), padding);
    for (size_t n = 0; n < 4; ++n) source[size_t(source_length) + n] = text[n];
    for (size_t n = 0; n < 3; ++n) target[size_t(target_length) + n] = text[n + 4];
    const int32_t lengths[] = {int32_t(source_length), 4};
    return rows_of_entry(
        model.logits(tape, {{source.data(), {2, source_length}}, {lengths, {2}}}, {target.data(), {2, target_length}}),
        3);
  };
  const auto wanted = run(4, 3, 0);
  EXPECT_EQ(wanted, run(9, 3, 5));
  EXPECT_EQ(wanted, run(4, 8, 6));
  EXPECT_EQ(wanted, run(7, 6, 1));
}

TEST_P(EncoderDecoderTest, ALaterTargetChangesNothingBefore) {
  EncoderDecoder model(tiny(GetParam()));
  model.initialise(3);
  Tape tape({.training = false});
  const auto source = tokens(12, 11, 0);
  auto target = tokens(10, 11, 1);
  const EncoderDecoder::Source from{.ids = {source.data(), {2, 6}}};
  const auto before = rows_of_entry(model.logits(tape, from, {target.data(), {2, 5}}), 4);
  target[9] = (target[9] + 1) % 11;
  EXPECT_EQ(before, rows_of_entry(model.logits(tape, from, {target.data(), {2, 5}}), 4));
}

TEST_P(EncoderDecoderTest, LanguageModelsReachEveryParameterToo) {
  LanguageModel model(tiny(GetParam()).decoder);
  model.initialise(1);
  const auto ids = tokens(10, 11, 0), next = tokens(10, 11, 2);
  Tape tape;
  tape.backward(model.loss(tape, {ids.data(), {2, 5}}, {next.data(), {2, 5}}));
  model.visit("", [](const std::string& name, Parameter& p) { EXPECT_TRUE(p.is_reached) << name; });
}

INSTANTIATE_TEST_SUITE_P(All, EncoderDecoderTest, testing::ValuesIn(kAllPositions));

TEST(EncoderDecoder, GivesTheWeightsOfCrossAttention) {
  EncoderDecoder model(tiny(Positions::kLearned));
  model.initialise(4);
  const auto source = tokens(12, 11, 0), target = tokens(8, 11, 1);
  Array weights(DType::kFloat32, {2, 4, 4, 6});
  const View<void> cross[] = {{}, weights.view()};
  const int32_t lengths[] = {6, 3};
  Tape tape({.training = false});
  model.logits(tape, {{source.data(), {2, 6}}, {lengths, {2}}}, {target.data(), {2, 4}}, {.cross = cross});
  const auto* w = static_cast<const float*>(weights.data());
  for (int64_t row = 0; row < 32; ++row) {
    double sum = 0;
    for (int64_t s = 0; s < 6; ++s) sum += double(w[row * 6 + s]);
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_EQ(w[row * 6 + 3] == 0, row >= 16) << row;
  }
}

TEST(EncoderDecoder, LearnsToTurnEightTextsAround) {
  constexpr int64_t kTexts = 8, kLength = 6;
  constexpr int32_t kBegin = 0, kEnd = 1;
  EncoderDecoder model({.decoder = {.vocabulary = 10, .context = kLength + 2, .width = 32, .layers = 1, .heads = 4}});
  model.initialise(5);
  const auto source = [&] {
    auto ids = tokens(kTexts * kLength, 8, 9);
    for (int32_t& id : ids) id += 2;
    return ids;
  }();
  std::vector<int32_t> target, next;
  std::vector<std::vector<int32_t>> turned;
  for (int64_t b = 0; b < kTexts; ++b) {
    const auto first = source.begin() + b * kLength;
    auto& text = turned.emplace_back(first, first + kLength);
    std::ranges::reverse(text);
    target.push_back(kBegin);
    target.insert(target.end(), text.begin(), text.end()), next.insert(next.end(), text.begin(), text.end());
    next.push_back(kEnd);
  }
  Optimiser optimiser(parameters_of(model), {});
  Tape tape;
  const View<const int32_t> rows(target.data(), {kTexts, kLength + 1}), wanted(next.data(), {kTexts, kLength + 1});
  double loss = 1e9;
  int step = 0;
  for (; step < 200 && loss > 0.05 * std::log(10); ++step) {
    tape.restart(uint64_t(step));
    const Variable l = model.loss(tape, {.ids = {source.data(), {kTexts, kLength}}}, rows, wanted);
    loss = *l.value().as<const double>().data;
    tape.backward(l);
    optimiser.step({.learning_rate = 1e-2, .clip_norm = 1});
  }
  EXPECT_LT(loss, 0.05 * std::log(10)) << "after " << step << " steps";
  const EncoderDecoder::Source from{.ids = {source.data(), {kTexts, kLength}}};
  EXPECT_EQ(model.greedy(from, {.begin = kBegin, .end = kEnd}), turned);
  for (const auto& text : model.greedy(from, {.begin = kBegin, .end = kEnd, .longest = 2})) EXPECT_EQ(text.size(), 2U);
  EXPECT_THROW(model.greedy(from, {.longest = 99}), OptionError);
}

TEST(EncoderDecoder, RefusesWhatDoesNotFitNamingBoth) {
  EncoderDecoder model(tiny(Positions::kLearned));
  const auto ids = tokens(30, 11, 0);
  const int32_t lengths[] = {1, 1, 1};
  Tape tape;
  EXPECT_THROW(model.logits(tape, {.ids = {ids.data(), {2, 10}}}, {ids.data(), {2, 3}}),
               ShapeError);  // beyond the context
  EXPECT_THROW(model.logits(tape, {.ids = {ids.data(), {2, 5}}}, {ids.data(), {3, 3}}), ShapeError);
  EXPECT_THROW(model.logits(tape, {{ids.data(), {2, 5}}, {lengths, {3}}}, {ids.data(), {2, 3}}), ShapeError);
  EXPECT_THROW(EncoderDecoder({.decoder = {.vocabulary = 3, .context = 0}}), OptionError);
  EXPECT_THROW(EncoderDecoder({.decoder = {.vocabulary = 3, .context = 4}, .encoder_layers = -1}), OptionError);
}

}  // namespace
}  // namespace qkv::nn
