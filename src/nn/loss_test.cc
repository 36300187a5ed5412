#include "nn/loss.h"

#include "nn/test_support.h"

namespace qkv::nn::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  Tensor logits;
  std::vector<int32_t> targets;
  CrossEntropyOptions options;

  Problem(DType type, int64_t rows, int64_t classes, double smoothing = 0, Placement placement = Placement::kContiguous)
      : logits(type, {rows, classes}, placement), targets(size_t(rows)) {
    logits.normal(uint64_t(rows + classes), 3);
    for (size_t r = 0; r < targets.size(); ++r) targets[r] = r % 5 == 3 ? -100 : int32_t((r * 7919) % size_t(classes));
    options.label_smoothing = smoothing;
  }
  CrossEntropyInputs inputs() const {
    return {logits.view(), View<const int32_t>(targets.data(), {int64_t(targets.size())})};
  }
  /// The loss of a row, and its gradient by every logit.
  std::pair<long double, std::vector<long double>> row(int64_t r) const {
    const int64_t n = logits.layout().shape[1];
    std::vector<long double> d(size_t(n), 0);
    if (targets[size_t(r)] < 0) return {0, d};
    long double max = -kInfinity, sum = 0, loss = 0;
    const long double e = options.label_smoothing;
    for (int64_t c = 0; c < n; ++c) max = std::max<long double>(max, logits.get(r, c));
    for (int64_t c = 0; c < n; ++c) sum += std::exp(logits.get(r, c) - max);
    for (int64_t c = 0; c < n; ++c) {
      const long double log_p = logits.get(r, c) - max - std::log(sum);
      const long double q = (c == targets[size_t(r)] ? 1 - e : 0) + e / n;
      if (q > 0) loss -= q * log_p;
      d[size_t(c)] = std::exp(log_p) - q;
    }
    return {loss, d};
  }
  std::pair<double, int64_t> expected_sum() const {
    long double sum = 0;
    int64_t count = 0;
    for (size_t r = 0; r < targets.size(); ++r)
      if (targets[r] >= 0) sum += row(int64_t(r)).first, ++count;
    return {double(sum), count};
  }
};

TEST(CrossEntropy, IsTheFormulaForEveryTypeSizeAndSmoothing) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t classes : {1, 2, 63, 65, 129, 2500})
        for (const double smoothing : {0.0, 0.1, 1.0}) {
          Problem p(type, 6, classes, smoothing, Placement::kGaps);
          const auto [sum, count] = p.expected_sum();
          Tensor d(type, {6, classes}), d2 = d, max(arithmetic(type), {6}), total = max;
          const Loss loss = cross_entropy(p.inputs(), d.view(), p.options);
          EXPECT_EQ(loss.rows, count);
          const double eps = rounding(arithmetic(type));
          EXPECT_NEAR(loss.value, sum / double(count), 16 * eps * (1 + std::abs(sum))) << name(type) << classes << set;
          EXPECT_EQ(cross_entropy_forward(p.inputs(), {max.view(), total.view()}, p.options).value, loss.value);
          cross_entropy_backward(p.inputs(), {max.view(), total.view()}, d2.view(), p.options);
          for (int64_t r = 0; r < 6; ++r) {
            const auto expected = p.row(r).second;
            for (int64_t c = 0; c < classes; ++c) {
              const double g = double(expected[size_t(c)]) / double(count);
              const double bound = 1.01 * rounding(type) * std::abs(g) +
                                   eps * (8 * (c == p.targets[size_t(r)]) + 48 * std::abs(g)) +  // exponents to 20

                                   eps * p.options.label_smoothing + (type == DType::kFloat16 ? 0x1p-25 : 0);
              ASSERT_NEAR(d.get(r, c), g, bound) << name(type) << classes << " " << smoothing << " " << set;
              ASSERT_NEAR(d2.get(r, c), g, bound) << name(type) << classes << " " << smoothing << " " << set;
            }
          }
          Tensor in_place = p.logits;
          cross_entropy({in_place.view(), p.inputs().targets}, in_place.view(), p.options);
          EXPECT_TRUE(same_bits(View<const void>(in_place.view()), View<const void>(d.view())));
        }
  });
}

TEST(CrossEntropy, IsPyTorchsNumber) {
  // torch.nn.functional.cross_entropy(torch.tensor(logits, dtype=float64), targets, label_smoothing=0.1), reduction mean and sum
  Tensor logits = qkv::testing::tensor(DType::kFloat64, {3, 4}, {0.5, -1, 2, 0.25, 1, 1, 1, 1, -3, 0, 4, 2});
  const std::vector<int32_t> targets = {2, -100, 0};
  const CrossEntropyInputs in{logits.view(), View<const int32_t>(targets.data(), {3})};
  CrossEntropyOptions options{.label_smoothing = 0.1};
  EXPECT_NEAR(cross_entropy_forward(in, {}, options).value, 3.6471253730834348, 1e-14);
  options.reduction = Reduction::kSum;
  EXPECT_NEAR(cross_entropy_forward(in, {}, options).value, 7.2942507461668695, 1e-14);
}

TEST(CrossEntropy, GradientsAreCentralDifferences) {
  for (const double smoothing : {0.0, 0.2})
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      Problem p(DType::kFloat64, 5, 7, smoothing);
      p.options.reduction = reduction, p.options.upstream = 1.5;
      Tensor d(DType::kFloat64, {5, 7});
      cross_entropy(p.inputs(), d.view(), p.options);
      EXPECT_TRUE(
          is_gradient(d, p.logits, [&] { return 1.5 * cross_entropy_forward(p.inputs(), {}, p.options).value; }));
    }
}

TEST(CrossEntropy, DefinesRowsThatAreNotFinite) {
  each_instruction_set([](const std::string& set) {
    for (const int64_t classes : {5, 70}) {
      Problem p(DType::kFloat32, 6, classes);
      p.targets = {0, 0, 0, 0, 0, 0};
      p.options.reduction = Reduction::kSum;
      p.logits.set(-kInfinity, 0, 1);                                        // of another class: nothing
      p.logits.set(-kInfinity, 1, 0);                                        // of the target
      for (int64_t c = 0; c < classes; ++c) p.logits.set(-kInfinity, 2, c);  // no class at all
      p.logits.set(kInfinity, 3, 1), p.logits.set(NAN, 4, classes - 1);
      const auto row_alone = [&](int64_t r, double* gradient) {
        Tensor d(DType::kFloat32, {1, classes});
        const Loss loss = cross_entropy(
            {slice(View<const void>(p.logits.view()), 0, r, r + 1), View<const int32_t>(p.targets.data(), {1})},
            d.view(), p.options);
        for (int64_t c = 0; c < classes; ++c) gradient[c] = d.get(0, c);
        return loss.value;
      };
      std::vector<double> g(static_cast<size_t>(classes));
      EXPECT_NEAR(row_alone(0, g.data()), double(p.row(0).first), 1e-5) << set;
      EXPECT_EQ(g[1], 0) << set;
      EXPECT_EQ(row_alone(1, g.data()), kInfinity) << set;
      EXPECT_EQ(g[0], -1) << set;
      for (const double x : g) EXPECT_TRUE(std::isfinite(x)) << set;
      for (const int64_t r : {2, 3, 4}) {
        EXPECT_TRUE(std::isnan(row_alone(r, g.data()))) << r << set;
        for (const double x : g) EXPECT_TRUE(std::isnan(x)) << r << set;
      }
      EXPECT_TRUE(std::isfinite(row_alone(5, g.data()))) << set;
      p.options.label_smoothing = 0.1;
      EXPECT_EQ(row_alone(0, g.data()), kInfinity) << set;
    }
  });
}

TEST(CrossEntropy, OfIgnoredRowsAloneIsZero) {
  Problem p(DType::kFloat32, 3, 5);
  p.targets = {-100, -100, -100};
  Tensor d(DType::kFloat32, {3, 5});
  const Loss loss = cross_entropy(p.inputs(), d.view());
  EXPECT_EQ(loss.value, 0);
  EXPECT_EQ(loss.rows, 0);
  EXPECT_TRUE(same_bits(d, Tensor(DType::kFloat32, {3, 5}).fill(0)));
}

TEST(CrossEntropy, HasTheSameBitsForAnyThreadsAndRowsAlone) {
  each_instruction_set([](const std::string& set) {
    const Problem p(DType::kFloat32, 50, 1500, 0.1);
    CrossEntropyOptions options = p.options;
    options.reduction = Reduction::kSum;
    double value = 0;
    const Tensor all = same_for_any_threads([&](const Call& call) {
      Tensor d(DType::kFloat32, {50, 1500});
      const double loss = cross_entropy(p.inputs(), d.view(), options, call).value;
      EXPECT_TRUE(value == 0 || value == loss);
      value = loss;
      return d;
    });
    Tensor one(DType::kFloat32, {1, 1500});
    cross_entropy({slice(p.logits.view(), 0, 17, 18), View<const int32_t>(p.targets.data() + 17, {1})}, one.view(),
                  options);
    EXPECT_TRUE(same_bits(one.view(), slice(all.view(), 0, 17, 18))) << set;
  });
}

TEST(CrossEntropy, LinearFormIsTheSameInAnyChunks) {
  const Problem p(DType::kFloat32, 23, 65, 0.1);
  Tensor wanted(DType::kFloat32, {23, 65});
  const Loss loss = cross_entropy(p.inputs(), wanted.view(), p.options);
  for (const int64_t rows : {1, 4, 23, 40}) {
    Tensor chunk(DType::kFloat32, {rows, 65}), got(DType::kFloat32, {23, 65});
    const auto copy = [](View<const void> from, View<void> to) {
      for (int64_t r = 0; r < to.shape[0]; ++r)
        for (int64_t c = 0; c < 65; ++c) to.as<float>()(r, c) = from.as<const float>()(r, c);
    };
    const Loss in_chunks = linear_cross_entropy(
        {p.inputs().targets, chunk.view()}, p.options,
        [&](int64_t first, int64_t last, View<void> logits) { copy(slice(p.logits.view(), 0, first, last), logits); },
        [&](int64_t first, int64_t last, View<const void> d) { copy(d, slice(got.view(), 0, first, last)); });
    EXPECT_EQ(in_chunks.value, loss.value);
    EXPECT_EQ(in_chunks.rows, loss.rows);
    EXPECT_TRUE(same_bits(got, wanted)) << rows;
  }
}

TEST(CrossEntropy, NamesWhatIsWrong) {
  Problem p(DType::kFloat32, 3, 5);
  Tensor d(DType::kFloat32, {3, 5});
  p.targets[1] = 5;
  EXPECT_EQ(message_of<OptionError>([&] { cross_entropy(p.inputs(), d.view()); }),
            "cross_entropy: targets[1] is 5, expected 0 to 4, or -100 for a row that does not count; correct it");
  p.targets.pop_back();
  EXPECT_EQ(message_of<ShapeError>([&] { cross_entropy(p.inputs(), d.view()); }),
            "cross_entropy: targets have shape {2}, expected {3}, one for each row of logits {3, 5}; pass one a row");
}

TEST(Errors, AreTheirFormulas) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t columns : {1, 63, 1100}) {
        const Tensor x = Tensor(type, {5, columns}, Placement::kGaps).normal(1),
                     y = Tensor(type, {5, columns}).normal(2);
        Tensor squared(type, {5, columns}), absolute = squared;
        const double mse = mean_squared_error(x.view(), y.view(), squared.view());
        const double mae = mean_absolute_error(x.view(), y.view(), absolute.view(), {.reduction = Reduction::kSum});
        long double squares = 0, sum = 0;
        x.each([&](int64_t r, int64_t c, int64_t, int64_t) {
          const double difference = x.get(r, c) - y.get(r, c);
          squares += difference * difference, sum += std::abs(difference);
          const double g = 2 * difference / double(x.size());
          EXPECT_NEAR(squared.get(r, c), g,
                      (1.01 * rounding(type) + 3 * rounding(arithmetic(type))) * std::abs(g) +
                          (type == DType::kFloat16 ? 0x1p-25 : 0));
          EXPECT_EQ(absolute.get(r, c), difference > 0 ? 1 : difference < 0 ? -1 : 0) << set;
        });
        const double unit = type == DType::kFloat64 ? 64 * rounding(type) : rounding(DType::kFloat32);
        EXPECT_NEAR(mse, double(squares) / double(x.size()), unit * mse) << name(type) << set;
        EXPECT_NEAR(mae, double(sum), unit * mae) << name(type) << set;
      }
  });
}

TEST(Errors, GradientsAreCentralDifferencesAndBitsDoNotDependOnThreads) {
  Tensor x = Tensor(DType::kFloat64, {3, 7}).normal(1), y = Tensor(DType::kFloat64, {3, 7}).normal(2), dx = x;
  mean_squared_error(x.view(), y.view(), dx.view(), {.upstream = 3});
  EXPECT_TRUE(is_gradient(dx, x, [&] { return 3 * mean_squared_error(x.view(), y.view()); }));
  mean_absolute_error(x.view(), y.view(), dx.view(), {.upstream = 3});
  EXPECT_TRUE(is_gradient(dx, x, [&] { return 3 * mean_absolute_error(x.view(), y.view()); }));
  const Tensor a = Tensor(DType::kFloat32, {90, 1300}).normal(1), b = Tensor(DType::kFloat32, {90, 1300}).normal(2);
  same_for_any_threads([&](const Call& call) {
    Tensor loss(DType::kFloat64, {1});
    loss.set(mean_squared_error(a.view(), b.view(), {}, {}, call), 0);
    return loss;
  });
}

}  // namespace
}  // namespace qkv::nn::testing
