#include "qkv/session.h"

#include <gmock/gmock.h>

#include <cstring>

#include "qkv/dropout.h"
#include "qkv/error.h"

namespace qkv::nn {
namespace {

constexpr int32_t kVocabulary = 19;
constexpr int64_t kBatch = 2;

struct Case {
  const char* name;
  TransformerOptions options;
  DType storage = DType::kFloat32;
};

TransformerOptions with(Positions positions, std::vector<Attention> attention = {}) {
  return {.vocabulary = kVocabulary,
          .context = 150,
          .width = 24,
          .layers = 2,
          .heads = 4,
          .key_heads = 2,
          .positions = positions,
          .attention = std::move(attention)};
}

std::vector<Case> cases() {
  const Attention window = Attention::parse("window:8,0"), cap = Attention().score(SoftCap{5});
  TransformerOptions f64 = with(Positions::kRotary), plain = with(Positions::kLearned), gated = with(Positions::kAlibi);
  f64.dtype = DType::kFloat64;
  plain.key_heads = 0, plain.has_bias = true;
  gated.is_gated = true, gated.norm = NormKind::kRms, gated.ties_weights = false, gated.key_heads = 1;
  return {{"none", with(Positions::kNone)},
          {"sinusoidal", with(Positions::kSinusoidal)},
          {"learned", with(Positions::kLearned)},
          {"rotary", with(Positions::kRotary)},
          {"alibi", with(Positions::kAlibi)},
          {"t5", with(Positions::kT5)},
          {"plain_heads", plain},
          {"gated", gated},
          {"window", with(Positions::kRotary, {window})},
          {"window_learned", with(Positions::kLearned, {window})},
          {"window_alibi", with(Positions::kAlibi, {window})},
          {"window_t5", with(Positions::kT5, {window})},
          {"every_other_window", with(Positions::kT5, {window, cap})},
          {"float64", f64, DType::kFloat64},
          {"bfloat16", with(Positions::kLearned), DType::kBFloat16},
          {"float16", with(Positions::kT5, {window, Attention{}}), DType::kFloat16}};
}

std::vector<int32_t> tokens(int64_t n, uint32_t which = 0) {
  std::vector<int32_t> ids;
  for (uint32_t i = 0; i < uint32_t(n); ++i) ids.push_back(int32_t(philox({i, which, 0, 0}, 7)[0] % kVocabulary));
  return ids;
}

/// Row `row` of entry b of logits {B, L, vocabulary}.
std::vector<std::byte> row_of(const View<const void>& logits, int64_t b, int64_t row) {
  const size_t bytes = size_t(kVocabulary) * size_of(logits.dtype);
  const auto* first =
      static_cast<const std::byte*>(logits.data) + logits.offset(b, row) * int64_t(size_of(logits.dtype));
  return {first, first + bytes};
}
std::vector<std::byte> entry_of(const View<const void>& logits, int64_t b) {
  const size_t bytes = size_t(kVocabulary) * size_of(logits.dtype);
  const auto* first = static_cast<const std::byte*>(logits.data) + size_t(b) * bytes;
  return {first, first + bytes};
}

TapeOptions reading(DType storage) {
  TapeOptions o;
  o.training = false;
  o.storage = storage;
  return o;
}

class SessionTest : public testing::TestWithParam<Case> {
 protected:
  SessionTest() : model(GetParam().options) { model.initialise(1); }
  /// Logits {kBatch, length, vocabulary} of all at once.
  View<const void> at_once(int64_t length) {
    all = model.logits(tape, {ids.data(), {kBatch, length}});
    return all.value();
  }
  std::vector<int32_t> columns(int64_t length, int64_t first, int64_t n) const {
    std::vector<int32_t> part;
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t l = 0; l < n; ++l) part.push_back(ids[size_t(b * length + first + l)]);
    return part;
  }
  Session make(int64_t chunk, int64_t rollback = 0) {
    return Session(model, {.batch = kBatch, .chunk = chunk, .rollback = rollback, .storage = GetParam().storage});
  }

  LanguageModel model;
  Tape tape{reading(GetParam().storage)};
  std::vector<int32_t> ids = tokens(400);
  Variable all;
};

TEST_P(SessionTest, StepByStepHasTheBitsOfAllAtOnce) {
  constexpr int64_t kLength = 40;
  const auto wanted = at_once(kLength);
  Session session = make(1);
  for (int64_t l = 0; l < kLength; ++l) {
    const auto step = columns(kLength, l, 1);
    const auto logits = session.read({step.data(), {kBatch, 1}});
    for (int64_t b = 0; b < kBatch; ++b) ASSERT_EQ(entry_of(logits, b), row_of(wanted, b, l)) << l << " of " << b;
  }
}

TEST_P(SessionTest, AnyPartsAndChunksHaveTheBitsOfAllAtOnce) {
  constexpr int64_t kLength = 140;  // more than a block of keys
  const auto wanted = at_once(kLength);
  for (const int64_t chunk : {1, 5, 64, 200}) {
    Session session = make(chunk);
    int64_t done = 0;
    for (const int64_t n : {1, 37, 2, 91, 9}) {
      const auto part = columns(kLength, done, n);
      const auto logits = session.read({part.data(), {kBatch, n}});
      done += n;
      for (int64_t b = 0; b < kBatch; ++b)
        ASSERT_EQ(entry_of(logits, b), row_of(wanted, b, done - 1)) << "chunk " << chunk << ", token " << done;
    }
  }
}

TEST_P(SessionTest, EntriesMayHaveDifferentLengths) {
  constexpr int64_t kLength = 30;
  const auto wanted = at_once(kLength);
  Session session = make(4);
  const int32_t first[] = {9, 17}, second[] = {0, 5}, third[] = {13, 1};
  int64_t done[] = {0, 0};
  for (const int32_t* rows : {first, second, third}) {
    std::vector<int32_t> part(size_t(kBatch * 20), 0);
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t l = 0; l < rows[b]; ++l) part[size_t(b * 20 + l)] = ids[size_t(b * kLength + done[b] + l)];
    const auto logits = session.read({part.data(), {kBatch, 20}}, {rows, {kBatch}});
    for (int64_t b = 0; b < kBatch; ++b) {
      done[b] += rows[b];
      EXPECT_EQ(session.lengths()(b), done[b]);
      ASSERT_EQ(entry_of(logits, b), row_of(wanted, b, done[b] - 1)) << b;
    }
  }
}

TEST_P(SessionTest, WhatIsTakenBackLeavesNoTrace) {
  constexpr int64_t kLength = 40;
  const auto wanted = at_once(kLength);
  Session session = make(8, 6);
  const auto prompt = columns(kLength, 0, 30), wrong = tokens(kBatch * 5, 9), rest = columns(kLength, 29, 11);
  session.read({prompt.data(), {kBatch, 30}});
  session.read({wrong.data(), {kBatch, 5}});
  session.rollback(6);
  const auto logits = session.read({rest.data(), {kBatch, 11}});
  for (int64_t b = 0; b < kBatch; ++b) EXPECT_EQ(entry_of(logits, b), row_of(wanted, b, kLength - 1));
  session.clear();
  const auto again = columns(kLength, 0, kLength);
  const auto whole = session.read({again.data(), {kBatch, kLength}});
  for (int64_t b = 0; b < kBatch; ++b) EXPECT_EQ(entry_of(whole, b), row_of(wanted, b, kLength - 1));
}

INSTANTIATE_TEST_SUITE_P(All, SessionTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST(Session, ReordersBeams) {
  LanguageModel model(with(Positions::kRotary, {Attention::parse("window:8,0"), Attention{}}));
  model.initialise(1);
  Session session(model, {.batch = 2}), other(model, {.batch = 2});
  const auto a = tokens(20, 1), b = tokens(20, 2), next = tokens(2, 3);
  auto both = a, swapped = b;
  both.insert(both.end(), b.begin(), b.end()), swapped.insert(swapped.end(), b.begin(), b.end());
  session.read({both.data(), {2, 20}}), other.read({swapped.data(), {2, 20}});
  const int32_t beams[] = {1, 1};
  session.reorder({beams, {2}});
  const auto x = session.read({next.data(), {2, 1}}), y = other.read({next.data(), {2, 1}});
  for (int64_t entry = 0; entry < 2; ++entry) EXPECT_EQ(entry_of(x, entry), entry_of(y, entry));
}

TEST(Session, RefusesTokensBeyondTheContextAndThenHasReadNothing) {
  TransformerOptions o = with(Positions::kRotary);
  o.context = 10;
  LanguageModel model(o);
  Session session(model);
  const auto ids = tokens(11);
  EXPECT_THROW(session.read({ids.data(), {1, 11}}), OptionError);
  EXPECT_EQ(session.lengths()(0), 0);
  session.read({ids.data(), {1, 10}});
  EXPECT_THROW(session.read({ids.data(), {1, 1}}), OptionError);
  EXPECT_EQ(session.lengths()(0), 10);
  session.rollback(1);
  session.read({ids.data(), {1, 1}});
}

TEST(Session, SlidesBeyondTheContextWhereEveryLayerHasAWindow) {
  for (const Positions positions : {Positions::kNone, Positions::kRotary, Positions::kAlibi, Positions::kT5}) {
    TransformerOptions o = with(positions, {Attention::parse("window:6,0")}), longer = o;
    o.context = 12, longer.context = 60;
    LanguageModel model(o), whole(longer);
    model.initialise(1), whole.initialise(1);
    Session session(model, {.chunk = 5});
    const auto ids = tokens(60);
    Tape tape({.training = false});
    const Variable wanted = whole.logits(tape, {ids.data(), {1, 60}});
    const size_t bytes = session.bytes();
    const auto logits = session.read({ids.data(), {1, 60}});
    EXPECT_EQ(entry_of(logits, 0), row_of(wanted.value(), 0, 59));
    EXPECT_EQ(session.bytes(), bytes);
  }
}

TEST(Session, RefusesWhatDoesNotFit) {
  LanguageModel model(with(Positions::kLearned, {Attention::parse("window:6,0")}));
  Session session(model, {.rollback = 2});
  const int32_t ids[] = {0, 1, kVocabulary, 3}, rows[] = {5};
  EXPECT_THROW(session.read({ids, {2, 2}}), ShapeError);
  EXPECT_THROW(session.read({ids, {1, 4}}), OptionError);
  EXPECT_THROW(session.read({ids, {1, 4}}, {rows, {1}}), OptionError);
  session.read({ids, {1, 2}});
  EXPECT_THROW(session.rollback(3), OptionError);
  session.rollback(2);
  EXPECT_THROW(session.rollback(1), OptionError);
  EXPECT_THROW(Session(model, {.batch = 0}), OptionError);
  EXPECT_THROW(Session(model, {.chunk = 0}), OptionError);
}

class TranslatingSessionTest : public testing::TestWithParam<Positions> {};

TEST_P(TranslatingSessionTest, TargetsStepByStepHaveTheBitsOfAllAtOnce) {
  EncoderDecoder model({.decoder = with(GetParam()), .source_context = 20});
  model.initialise(2);
  const auto source = tokens(2 * 13, 4), target = tokens(2 * 15, 5);
  const int32_t lengths[] = {13, 6};
  const EncoderDecoder::Source from{{source.data(), {2, 13}}, {lengths, {2}}};
  Tape tape({.training = false});
  const Variable wanted = model.logits(tape, from, {target.data(), {2, 15}});
  Session session(model, from, {.chunk = 4});
  int64_t done = 0;
  for (const int64_t n : {1, 1, 6, 1, 5, 1}) {
    std::vector<int32_t> part;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t l = 0; l < n; ++l) part.push_back(target[size_t(b * 15 + done + l)]);
    const auto logits = session.read({part.data(), {2, n}});
    done += n;
    for (int64_t b = 0; b < 2; ++b) ASSERT_EQ(entry_of(logits, b), row_of(wanted.value(), b, done - 1)) << done;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TranslatingSessionTest,
                         testing::Values(Positions::kNone, Positions::kSinusoidal, Positions::kLearned,
                                         Positions::kRotary, Positions::kAlibi, Positions::kT5));

}  // namespace
}  // namespace qkv::nn
