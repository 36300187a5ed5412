#include "nn/optimizer_step.h"

#include "nn/test_support.h"

namespace qkv::nn::testing {
namespace {

const std::vector<double> kStart = {0.5, -1.25, 2.0};
const std::vector<std::vector<double>> kGradients = {{0.1, -0.2, 0.3}, {0.4, 0.0, -0.5}, {-0.3, 0.7, 0.2}};

/// Three steps from kStart; step(parameters and gradient, number).
template <class F> void expect_after_three_steps(const std::vector<double>& expected, F step) {
  each_instruction_set([&](const std::string& set) {
    Tensor p = qkv::testing::tensor(DType::kFloat64, {3}, kStart);
    for (int64_t n = 1; n <= 3; ++n) {
      const Tensor g = qkv::testing::tensor(DType::kFloat64, {3}, kGradients[size_t(n - 1)]);
      step(Step{p.view(), g.view()}, n);
    }
    for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(p.get(i), expected[size_t(i)], 1e-15 * 4) << set;
  });
}

// The expected numbers are PyTorch's, from torch.optim with these arguments in float64.
TEST(AdamStep, IsPyTorchsAdamW) {
  Tensor m(DType::kFloat64, {3}), v(DType::kFloat64, {3});
  const AdamOptions options{.learning_rate = 0.05, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1};
  expect_after_three_steps({0.39223626281154372, -1.1774573747746122, 1.9384355688264583},
                           [&](const Step& step, int64_t n) {
                             if (n == 1) m.fill(0), v.fill(0);
                             adam_step(step, {m.view(), v.view()}, n, options);
                           });
}

TEST(AdamStep, IsPyTorchsAdam) {
  Tensor m(DType::kFloat64, {3}), v(DType::kFloat64, {3});
  const AdamOptions options{.learning_rate = 0.05,
                            .beta1 = 0.8,
                            .beta2 = 0.95,
                            .epsilon = 1e-6,
                            .weight_decay = 0.1,
                            .decay = Decay::kInGradient};
  expect_after_three_steps({0.39053856789213182, -1.1709422450223101, 1.919833227713994},
                           [&](const Step& step, int64_t n) {
                             if (n == 1) m.fill(0), v.fill(0);
                             adam_step(step, {m.view(), v.view()}, n, options);
                           });
}

TEST(SgdStep, IsPyTorchsWithMomentumNesterovAndDampening) {
  Tensor velocity(DType::kFloat64, {3});  // NaN: the first step does not read it
  SgdOptions options{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
  const auto step = [&](const Step& s, int64_t n) { sgd_step(s, velocity.view(), n, options); };
  expect_after_three_steps({0.43777351393749997, -1.2327504885312499, 1.917687213125}, step);
  options.nesterov = false, options.dampening = 0.25;
  expect_after_three_steps({0.45715755078124998, -1.2188676621093748, 1.9389387109375}, step);
  options = {.learning_rate = 0.05, .weight_decay = 0.1};
  expect_after_three_steps({0.48268731250000002, -1.2564433437499998, 1.970174375},
                           [&](const Step& s, int64_t n) { sgd_step(s, {}, n, options); });
}

/// A step of AdamW in long double.
struct Reference {
  long double p, m, v;
  void step(long double g, int64_t n, const AdamOptions& o) {
    g *= o.gradient_scale;
    p -= p * o.learning_rate * o.weight_decay;
    m = o.beta1 * m + (1 - (long double)o.beta1) * g;
    v = o.beta2 * v + (1 - (long double)o.beta2) * g * g;
    const long double first = m / (1 - std::pow((long double)o.beta1, n)),
                      second = v / (1 - std::pow((long double)o.beta2, n));
    p -= o.learning_rate * first / (std::sqrt(second) + o.epsilon);
  }
};

TEST(AdamStep, IsTheFormulaForEveryTypeOfGradientAndCopyAndSize) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t count : {1, 7, 65, 3001}) {
        const DType master = arithmetic(type);
        Tensor p = Tensor(master, {count}).normal(1), m = Tensor(master, {count}).fill(0), v = m, copy(type, {count});
        const Tensor start = p;
        const Tensor g = Tensor(type, {count}).normal(2);
        const AdamOptions options{.learning_rate = 0.01, .gradient_scale = 0.5};
        for (int64_t n = 1; n <= 3; ++n) adam_step({p.view(), g.view(), copy.view()}, {m.view(), v.view()}, n, options);
        for (int64_t i = 0; i < count; ++i) {
          Reference r{start.get(i), 0, 0};
          for (int64_t n = 1; n <= 3; ++n) r.step(g.get(i), n, options);
          const double unit = rounding(master);
          ASSERT_NEAR(p.get(i), double(r.p), unit * (4 * std::abs(double(r.p)) + 1)) << name(type) << count << set;
          Tensor rounded(type, {1});
          rounded.set(p.get(i), 0);
          ASSERT_EQ(copy.get(i), rounded.get(0)) << name(type) << " once, to nearest even";
        }
      }
  });
}

TEST(AdamStep, HasTheSameBitsForAnyThreads) {
  const Tensor g = Tensor(DType::kFloat32, {100003}).normal(2);
  same_for_any_threads([&](const Call& call) {
    Tensor p = Tensor(DType::kFloat32, {100003}).normal(1), m = Tensor(DType::kFloat32, {100003}).fill(0), v = m;
    adam_step({p.view(), g.view()}, {m.view(), v.view()}, 1, {}, call);
    return p;
  });
}

TEST(AdamStep, NamesWhatIsWrong) {
  Tensor p(DType::kFloat32, {3}), wide(DType::kFloat64, {3}), half(DType::kFloat16, {3});
  const Moments moments{p.view(), p.view()};
  EXPECT_EQ(message_of<OptionError>([&] {
              adam_step({p.view(), p.view()}, moments, 0, {});
            }),
            "adam_step: number is 0, expected 1 or more; count steps from 1");
  EXPECT_EQ(message_of<OptionError>([&] {
              adam_step({p.view(), p.view()}, moments, 1, {.beta2 = 1});
            }),
            "adam_step: beta2 is 1, expected 0 or more and below 1; correct it");
  EXPECT_EQ(message_of<DtypeError>([&] {
              adam_step({half.view(), half.view()}, moments, 1, {});
            }),
            "adam_step: parameters has type float16, expected float32, the type of arithmetic; allocate it so");
  EXPECT_EQ(message_of<ShapeError>([&] {
              sgd_step({p.view(), p.view()}, {}, 1, {.momentum = 0.9});
            }),
            "sgd_step: velocity has shape {}, expected {3}; allocate it so");
  EXPECT_EQ(
      message_of<OptionError>([&] {
        sgd_step({p.view(), p.view()}, {}, 1, {.nesterov = true});
      }),
      "sgd_step: nesterov with momentum 0 and dampening 0, expected momentum above 0 and dampening 0; set them so");
}

TEST(SumOfSquares, IsOneForAnyThreadsAndExactInDouble) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t count : {0, 1, 65, 4096, 50001}) {
        const Tensor x = Tensor(type, {count}).normal(3);
        long double expected = 0;
        for (int64_t i = 0; i < count; ++i) expected += (long double)x.get(i) * x.get(i);
        const Tensor sum = same_for_any_threads([&](const Call& call) {
          Tensor s(DType::kFloat64, {1});
          s.set(sum_of_squares(x.view(), call), 0);
          return s;
        });
        EXPECT_NEAR(sum.get(0), double(expected), 1e-13 * double(expected)) << name(type) << count << set;
      }
    Tensor large = Tensor(DType::kFloat32, {9}).fill(1e30);
    EXPECT_NEAR(sum_of_squares(large.view()), 9e60, 1e54) << "beyond float32's range";
  });
}

TEST(ClipFactor, IsPyTorchs) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(2, 1), 1 / (2 + 1e-6));
  EXPECT_TRUE(std::isnan(clip_factor(NAN, 1)));
}

TEST(Unscale, SaysWhetherEverythingIsFinite) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const double bad : {0.0, double(INFINITY), double(NAN)}) {
        Tensor x = Tensor(type, {2005}).fill(8);
        if (bad != 0) x.set(bad, 1030);
        EXPECT_EQ(unscale(x.view(), 0.25), bad == 0) << name(type) << set;
        EXPECT_EQ(x.get(2004), 2);
        scale_in_place(x.view(), 3);
        EXPECT_EQ(x.get(7), 6);
      }
    Tensor half = Tensor(DType::kFloat16, {3}).fill(60000);
    EXPECT_FALSE(unscale(half.view(), 2)) << "infinite once it is rounded";
  });
}

}  // namespace
}  // namespace qkv::nn::testing
