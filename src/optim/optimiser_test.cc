#include "qkv/optim.h"

#include <gmock/gmock.h>

#include <cmath>
#include <deque>
#include <map>
#include <numbers>

#include "qkv/error.h"

namespace qkv::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- schedules ----

TEST(Schedule, RisesThenStays) {
  const Schedule s{.peak = 8, .warmup = 4};
  EXPECT_THAT((std::vector{s.at(0), s.at(1), s.at(3), s.at(4), s.at(1000)}), ElementsAre(2, 4, 8, 8, 8));
}

TEST(Schedule, FallsInAStraightLineToItsLastRate) {
  const Schedule s{.kind = ScheduleKind::kLinear, .peak = 10, .last = 2, .warmup = 2, .steps = 10};
  EXPECT_THAT((std::vector{s.at(1), s.at(2), s.at(6), s.at(10), s.at(99)}), ElementsAre(10, 10, 6, 2, 2));
}

TEST(Schedule, FallsAlongACosine) {
  const Schedule s{.kind = ScheduleKind::kCosine, .peak = 1, .last = 0.1, .warmup = 100, .steps = 2000};
  EXPECT_DOUBLE_EQ(s.at(100), 1);
  EXPECT_DOUBLE_EQ(s.at(1050), 0.55);
  EXPECT_NEAR(s.at(575), 0.1 + 0.45 * (1 + std::cos(std::numbers::pi / 4)), 1e-15);
  EXPECT_DOUBLE_EQ(s.at(2000), 0.1);
}

TEST(Schedule, FallsAsTheInverseSquareRoot) {
  const Schedule s{.kind = ScheduleKind::kInverseSquareRoot, .peak = 2, .warmup = 4};
  EXPECT_THAT((std::vector{s.at(3), s.at(15), s.at(63)}), ElementsAre(2, 1, 0.5));
}

TEST(Schedule, RefusesWhatCannotBeMeant) {
  EXPECT_THROW((Schedule{.kind = ScheduleKind::kInverseSquareRoot}.at(0)), OptionError);
  EXPECT_THROW((Schedule{.kind = ScheduleKind::kCosine, .warmup = 10, .steps = 10}.at(0)), OptionError);
  EXPECT_THROW((Schedule{.peak = NAN}.at(0)), OptionError);
  EXPECT_THROW((Schedule{.peak = -1}.at(0)), OptionError);
  EXPECT_THROW(Schedule{}.at(-1), OptionError);
}

// ---- optimisers ----

/// Two parameters of two elements, of which the second does not decay.
struct Model {
  std::deque<Parameter> p;
  Model() {
    for (int n = 0; n < 2; ++n) {
      p.emplace_back(DType::kFloat64, std::vector<int64_t>{2});
      set(p.back().value, {1.0 + n, -2.0});
    }
    p[1].decays = false;
  }
  static void set(Array& a, std::vector<double> values) { std::ranges::copy(values, static_cast<double*>(a.data())); }
  void give(size_t n, std::vector<double> gradient) {
    p[n].gradient = Array(DType::kFloat64, {2});
    set(p[n].gradient, std::move(gradient));
    p[n].is_reached = true;
  }
  std::vector<double> value(size_t n) const {
    const auto* first = static_cast<const double*>(p[n].value.data());
    return {first, first + 2};
  }
  std::vector<NamedParameter> named() { return {{"a", &p[0]}, {"b", &p[1]}}; }
};

TEST(Optimiser, DecaysOnlyWhatDecays) {
  Model model;
  Optimiser optimiser(model.named(), {.kind = OptimiserKind::kSgd, .weight_decay = 0.5});
  model.give(0, {0, 0}), model.give(1, {0, 0});
  optimiser.step({.learning_rate = 0.1});
  EXPECT_THAT(model.value(0), ElementsAre(0.95, -1.9));
  EXPECT_THAT(model.value(1), ElementsAre(2, -2));
}

TEST(Optimiser, ClipsByTheNormOfAllGradientsTogether) {
  Model model;
  Optimiser optimiser(model.named(), {.kind = OptimiserKind::kSgd});
  model.give(0, {6, 0}), model.give(1, {0, 8});
  const auto taken = optimiser.step({.learning_rate = 1, .clip_norm = 1, .gradient_scale = 0.5});
  EXPECT_DOUBLE_EQ(taken.gradient_norm, 5);
  EXPECT_NEAR(model.value(0)[0], 1 - 0.6, 1e-6);
  EXPECT_NEAR(model.value(1)[1], -2 - 0.8, 1e-6);
}

TEST(Optimiser, AdamsFirstStepIsTheLearningRate) {
  Model model;
  Optimiser optimiser(model.named(), {.kind = OptimiserKind::kAdamW, .epsilon = 0});
  model.give(0, {3, -1e-3});
  optimiser.step({.learning_rate = 0.25});
  EXPECT_NEAR(model.value(0)[0], 0.75, 1e-15);
  EXPECT_NEAR(model.value(0)[1], -1.75, 1e-15);
  EXPECT_THAT(model.value(1), ElementsAre(2, -2)) << "it has no gradient";
  EXPECT_EQ(model.p[0].version, 1U);
  EXPECT_FALSE(model.p[0].is_reached);
}

TEST(Optimiser, LeavesAStepWithAGradientThatIsNotFiniteOut) {
  Model model;
  Optimiser optimiser(model.named(), {});
  model.give(0, {1, 1}), model.give(1, {INFINITY, 0});
  EXPECT_FALSE(optimiser.step({}).is_finite);
  EXPECT_THAT(model.value(0), ElementsAre(1, -2));
  EXPECT_EQ(optimiser.steps(), 0);
  EXPECT_FALSE(model.p[0].is_reached);
}

TEST(Optimiser, ContinuesFromItsStateToTheLastBit) {
  for (const auto kind : {OptimiserKind::kSgd, OptimiserKind::kAdam, OptimiserKind::kAdamW}) {
    const Optimiser::Options options{.kind = kind, .weight_decay = 0.1, .momentum = 0.9};
    Model whole, broken;
    Optimiser first(whole.named(), options), second(broken.named(), options);
    const auto step = [](Model& m, Optimiser& o, int n) {
      m.give(0, {0.1 * n, -1}), m.give(1, {1, 0.3});
      o.step({.learning_rate = 0.01});
    };
    for (int n = 0; n < 3; ++n) step(whole, first, n), step(broken, second, n);
    std::map<std::string, std::vector<double>> saved;
    second.visit_state([&](const std::string& name, Array& a) {
      const auto* x = static_cast<const double*>(a.data());
      saved[name] = {x, x + a.size()};
    });
    Optimiser again(broken.named(), options);
    again.prepare_state(second.steps());
    again.visit_state([&](const std::string& name, Array& a) { Model::set(a, saved.at(name)); });
    for (int n = 3; n < 6; ++n) step(whole, first, n), step(broken, again, n);
    EXPECT_EQ(whole.value(0), broken.value(0));
    EXPECT_EQ(whole.value(1), broken.value(1));
    EXPECT_EQ(saved.size(), kind == OptimiserKind::kSgd ? 2U : 4U);
  }
}

TEST(Optimiser, RefusesNumbersThatCannotBeMeant) {
  Model model;
  const auto refused = [&](const Optimiser::Options& o) {
    try {
      Optimiser optimiser(model.named(), o);
      return std::string("accepted");
    } catch (const OptionError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_THAT(refused({.beta1 = 1}), HasSubstr("Optimiser: beta1 is 1, expected 0 to"));
  EXPECT_THAT(refused({.weight_decay = -1}), HasSubstr("weight_decay is -1"));
  EXPECT_THAT(refused({.epsilon = NAN}), HasSubstr("epsilon is nan"));
}

}  // namespace
}  // namespace qkv::nn
