#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "qkv/autograd.h"
#include "qkv/error.h"

namespace qkv::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Operations on contiguous float64 tensors, as small as they can be.

std::span<const double> numbers(View<const void> v) { return {static_cast<const double*>(v.data), size_t(v.size())}; }
std::span<double> numbers(View<void> v) { return {static_cast<double*>(v.data), size_t(v.size())}; }

void give(const Variable& x, auto&& each) {
  const Variable::Sink sink = x.sink();
  if (!sink.view) return;
  const auto to = numbers(sink.view);
  for (size_t n = 0; n < to.size(); ++n) to[n] = (sink.add ? to[n] : 0) + each(n);
}

Variable multiply(Tape& tape, const Variable& a, const Variable& b) {
  Variable y = tape.make(a.layout(), DType::kFloat64);
  const auto to = numbers(y.to_write());
  for (size_t n = 0; n < to.size(); ++n) to[n] = numbers(a.value())[n] * numbers(b.value())[n];
  tape.record({y}, {a, b}, [a, b, y] {
    const auto dy = numbers(y.gradient());
    give(a, [&](size_t n) { return dy[n] * numbers(b.value())[n]; });
    give(b, [&](size_t n) { return dy[n] * numbers(a.value())[n]; });
  });
  return y;
}

Variable sum(Tape& tape, const Variable& x) {
  Variable y = tape.make(Layout(std::vector<int64_t>{1}), DType::kFloat64);
  const auto from = numbers(x.value());
  numbers(y.to_write())[0] = std::accumulate(from.begin(), from.end(), 0.0);
  tape.record({y}, {x}, [x, y] {
    const double dy = numbers(y.gradient())[0];
    give(x, [&](size_t) { return dy; });
  });
  return y;
}

/// Each element times a number that comes from the tape's seed: what dropout is to a tape.
Variable shaken(Tape& tape, const Variable& x) {
  const double factor = 1 + std::ldexp(double(tape.next_seed() >> 11), -53);
  Variable y = tape.make(x.layout(), DType::kFloat64);
  const auto to = numbers(y.to_write());
  for (size_t n = 0; n < to.size(); ++n) to[n] = numbers(x.value())[n] * factor;
  tape.record({y}, {x}, [x, y, factor] {
    const auto dy = numbers(y.gradient());
    give(x, [&](size_t n) { return dy[n] * factor; });
  });
  return y;
}

Array array(std::vector<double> values) {
  Array a(DType::kFloat64, {int64_t(values.size())});
  std::ranges::copy(values, static_cast<double*>(a.data()));
  return a;
}

void set(Parameter& p, std::vector<double> values) {
  p.value = array(std::move(values));
  p.changed();
}

std::vector<double> gradient_of(const Parameter& p) {
  const auto g = numbers(p.gradient.view());
  return {g.begin(), g.end()};
}

struct TapeTest : testing::Test {
  Tape tape{{.storage = DType::kFloat64}};
  Parameter p;
  TapeTest() { set(p, {2, 3}); }
};

TEST_F(TapeTest, GoesBackThroughProductsAndSums) {
  const Array numbers_of_x = array({5, 7});
  const Variable x = tape.leaf(numbers_of_x.view()), w = tape.use(p);
  tape.backward(sum(tape, multiply(tape, multiply(tape, x, w), w)));  // x w^2
  EXPECT_THAT(gradient_of(p), ElementsAre(2 * 5 * 2, 2 * 7 * 3));
  const auto dx = numbers(x.gradient());
  EXPECT_THAT(std::vector<double>(dx.begin(), dx.end()), ElementsAre(4, 9));
}

TEST_F(TapeTest, GradientsOfParametersAddUpUntilTheyAreForgotten) {
  for (int step = 0; step < 2; ++step) {
    const Variable w = tape.use(p);
    tape.backward(sum(tape, multiply(tape, w, w)), 0.5);
  }
  EXPECT_THAT(gradient_of(p), ElementsAre(4, 6));
  p.forget_gradient();
  const Variable w = tape.use(p);
  tape.backward(sum(tape, w));
  EXPECT_THAT(gradient_of(p), ElementsAre(1, 1));
}

TEST_F(TapeTest, PartsOfATensorMeetInItsGradient) {
  const Variable w = tape.use(p), doubled = multiply(tape, w, w);
  const Layout one(std::vector<int64_t>{1});
  const Variable first = doubled.seen_as(one), second = doubled.seen_as(one, 1);
  tape.backward(sum(tape, multiply(tape, first, second)));  // (w0 w1)^2
  EXPECT_THAT(gradient_of(p), ElementsAre(2 * 2 * 9, 2 * 3 * 4));
}

TEST_F(TapeTest, APartThatNothingDependsOnHasAGradientOfZero) {
  const Variable w = tape.use(p);
  tape.backward(sum(tape, w.seen_as(Layout(std::vector<int64_t>{1}), 1)));
  EXPECT_THAT(gradient_of(p), ElementsAre(0, 1));
}

TEST_F(TapeTest, PartsThatCoverATensorAreWrittenWithoutZeros) {
  const Variable w = tape.use(p), y = multiply(tape, w, w);
  const Layout one(std::vector<int64_t>{1});
  const Variable parts[] = {y.seen_as(one), y.seen_as(one, 1)};
  sum(tape, y);  // so that y needs a gradient
  const auto sinks = Variable::sinks(parts);
  EXPECT_FALSE(sinks[0].add || sinks[1].add);
  EXPECT_TRUE(Variable::sinks(parts)[1].add) << "the second contribution adds";
}

TEST_F(TapeTest, WhatNothingDependsOnIsNotGoneThrough) {
  const Variable w = tape.use(p);
  const Variable unused = multiply(tape, w, w);
  tape.record({unused.seen_as(unused.layout())}, {w}, [] { FAIL() << "no gradient has come here"; });
  tape.backward(sum(tape, w));
  EXPECT_THAT(gradient_of(p), ElementsAre(1, 1));
}

TEST_F(TapeTest, NothingIsRecordedWhereNothingIsTrained) {
  Tape quiet({.training = false, .storage = DType::kFloat64});
  const Variable y = sum(quiet, multiply(quiet, quiet.use(p), quiet.use(p)));
  EXPECT_EQ(numbers(y.value())[0], 13);
  EXPECT_FALSE(y.needs_gradient());
  EXPECT_THROW(quiet.backward(y), OptionError);
}

TEST_F(TapeTest, MemoryComesBackOnTheWay) {
  Variable x = tape.use(p);
  for (int n = 0; n < 10; ++n) x = multiply(tape, x, x);
  const size_t forward = tape.bytes();
  const Variable loss = sum(tape, x);
  x = {};
  tape.backward(loss);
  EXPECT_LE(tape.peak_bytes(), forward + 4 * 64) << "a gradient and its successor, and the loss";
  EXPECT_EQ(tape.bytes(), 2 * 64u) << "the loss is still held";
}

Variable chain(Tape& tape, Variable x, Parameter& p, int segments, int length, bool is_checkpointed) {
  for (int s = 0; s < segments; ++s) {
    const auto segment = [&p, length](Tape& t, std::span<const Variable> in) {
      Variable y = in[0];
      for (int n = 0; n < length; ++n) y = shaken(t, multiply(t, y, t.use(p)));
      return y;
    };
    x = is_checkpointed ? tape.checkpoint({&x, 1}, segment) : segment(tape, {&x, 1});
  }
  return x;
}

TEST(Checkpoint, HasTheSameGradientsToTheLastBitInLessMemory) {
  std::vector<double> gradients[2], dx[2];
  size_t peak[2];
  for (const bool is_checkpointed : {false, true}) {
    Tape tape({.seed = 7, .storage = DType::kFloat64});
    Parameter p;
    set(p, std::vector<double>(1000, 1.01));
    const Array start = array(std::vector<double>(1000, 0.3));
    const Variable x = tape.leaf(start.view());
    tape.backward(sum(tape, chain(tape, x, p, 8, 8, is_checkpointed)));
    gradients[is_checkpointed] = gradient_of(p);
    const auto by_x = numbers(x.gradient());
    dx[is_checkpointed] = {by_x.begin(), by_x.end()};
    peak[is_checkpointed] = tape.peak_bytes();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(dx[0], dx[1]);
  EXPECT_LT(double(peak[1]), 0.3 * double(peak[0]));
}

TEST(Checkpoint, WorksInsideOfAnother) {
  std::vector<double> gradients[2];
  for (const bool is_nested : {false, true}) {
    Tape tape({.seed = 7, .storage = DType::kFloat64});
    Parameter p;
    set(p, {1.01, 0.7});
    const Array start = array({0.3, 0.4});
    const Variable x = tape.leaf(start.view());
    const auto all = [&](Tape& t, std::span<const Variable> in) { return chain(t, in[0], p, 3, 2, is_nested); };
    tape.backward(sum(tape, tape.checkpoint({&x, 1}, all)));
    gradients[is_nested] = gradient_of(p);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST_F(TapeTest, EqualStepsAllocateNothing) {
  size_t peak = 0;
  for (int step = 0; step < 3; ++step) {
    tape.restart(uint64_t(step));
    Variable x = tape.use(p);
    for (int n = 0; n < 5; ++n) x = multiply(tape, x, tape.use(p));
    tape.backward(sum(tape, x));
    if (step > 0) {
      EXPECT_EQ(tape.peak_bytes(), peak);
    }
    peak = tape.peak_bytes();
  }
}

TEST_F(TapeTest, RefusesWhatIsNoLossAndWhatDoesNotFit) {
  const Variable w = tape.use(p), y = multiply(tape, w, w);
  try {
    tape.backward(y);
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), HasSubstr("backward: the loss is {2}, expected one element"));
  }
  const float three[3] = {};
  const double two[2] = {1, 1};
  EXPECT_THROW(tape.backward(y, View<const float>(three, {2})), DtypeError);
  EXPECT_THROW(tape.backward(y, View<const double>(two, {1})), ShapeError);
  EXPECT_THROW(y.seen_as(Layout(std::vector<int64_t>{2}), 1), ShapeError);
  EXPECT_THROW(y.seen_as(Layout(std::vector<int64_t>{1}), -1), ShapeError);
  EXPECT_THROW(tape.leaf(View<const double>(two, {1, 2}, {1, 3})), ShapeError);
  tape.backward(y, View<const double>(two, {2}));
  EXPECT_THAT(gradient_of(p), ElementsAre(4, 6));
}

}  // namespace
}  // namespace qkv::nn
