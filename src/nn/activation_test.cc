#include "nn/activation.h"

#include "nn/test_support.h"

namespace qkv::nn::testing {
namespace {

constexpr Activation kAll[] = {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu};

long double value(Activation f, long double x) {
  switch (f) {
    case Activation::kRelu: return x > 0 ? x : 0;
    case Activation::kGelu: return x * std::erfc(-x / std::sqrt(2.0L)) / 2;
    case Activation::kGeluTanh: {
      const long double z = std::sqrt(8 / std::acos(-1.0L)) * (x + 0.044715L * x * x * x);
      return x / (1 + std::exp(-z));
    }
    default: return x / (1 + std::exp(-x));
  }
}

long double derivative(Activation f, long double x) {
  const long double pi = std::acos(-1.0L);
  switch (f) {
    case Activation::kRelu: return x > 0 ? 1 : 0;
    case Activation::kGelu: return std::erfc(-x / std::sqrt(2.0L)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * pi);
    case Activation::kGeluTanh: {
      const long double z = std::sqrt(8 / pi) * (x + 0.044715L * x * x * x);
      const long double s = 1 / (1 + std::exp(-z)), rest = 1 / (1 + std::exp(z));
      return s + x * s * rest * std::sqrt(8 / pi) * (1 + 3 * 0.044715L * x * x);
    }
    default: return (1 + x / (1 + std::exp(x))) / (1 + std::exp(-x));
  }
}

/// The largest errors of f and f' over a dense grid of [-8, 8], in units in the last place of the larger of |f| and |x| / 16, and of
/// the larger of |f'| and 1/4: near its zeros the derivative is a difference of larger numbers.
template <class T> std::pair<double, double> worst(Activation f, int points) {
  std::vector<T> x(static_cast<size_t>(points)), y(x.size()), slope(x.size());
  for (int i = 0; i < points; ++i) x[size_t(i)] = T(-8 + 16.0 * i / (points - 1));
  const auto view = [&](auto& v) { return View<T>(v.data(), {1, points}); };
  activation_forward(f, view(x), view(y), view(slope));
  const auto units = [](T got, long double expected, double floor) {
    const long double size = std::max<long double>(std::abs(expected), floor);
    return double(std::abs(got - expected) / std::ldexp(1.0L, std::ilogb(size) + 1 - std::numeric_limits<T>::digits));
  };
  double values = 0, slopes = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    values = std::max(values, units(y[i], value(f, x[i]), std::max(1e-30, std::abs(double(x[i])) / 16)));
    slopes = std::max(slopes, units(slope[i], derivative(f, x[i]), 0.25));
  }
  return {values, slopes};
}

TEST(Activation, KeepsItsErrorBoundOnADenseGrid) {
  each_instruction_set([](const std::string& set) {
    for (const Activation f : kAll) {
      const auto narrow = worst<float>(f, 200001), wide = worst<double>(f, 50001);
      EXPECT_LE(narrow.first, 6) << name(f) << " " << set;
      EXPECT_LE(narrow.second, 4) << name(f) << " " << set;
      EXPECT_LE(wide.first, 6) << name(f) << " " << set;
      EXPECT_LE(wide.second, 4) << name(f) << " " << set;
    }
  });
}

TEST(Activation, GeluHasNoCancellationWhereItIsTiny) {
  each_instruction_set([](const std::string& set) {
    for (float x = -12; x < -2; x += 0.01f) {
      float y;
      activation_forward(Activation::kGelu, View<float>(&x, {1, 1}), View<float>(&y, {1, 1}));
      const double expected = double(value(Activation::kGelu, x));
      // The exponent -x^2 / 2 is rounded.
      EXPECT_NEAR(y, expected, -expected * (6 + x * x / 2) * 0x1p-23) << x << " " << set;
    }
  });
}

TEST(Activation, HasItsLimitsAtInfinityAndKeepsNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  each_instruction_set([&](const std::string& set) {
    for (const Activation f : kAll) {
      float x[] = {-infinity, infinity, NAN, -3e38f, 3e38f, 0, -100, 100}, y[8], slope[8];
      activation_forward(f, View<float>(x, {1, 8}), View<float>(y, {1, 8}), View<float>(slope, {1, 8}));
      const float values[] = {0, infinity, NAN, 0, 3e38f, 0, 0, 100}, slopes[] = {0, 1, NAN, 0, 1, 0.5, 0, 1};
      for (int i = 0; i < 8; ++i) {
        if (i == 2) {
          EXPECT_TRUE(std::isnan(y[i])) << name(f) << " " << set;
          continue;
        }
        EXPECT_EQ(y[i], values[i]) << name(f) << " " << set << " of " << x[i];
        EXPECT_EQ(slope[i], i == 5 && f == Activation::kRelu ? 0 : slopes[i])
            << name(f) << " " << set << " of " << x[i];
      }
    }
  });
}

TEST(Activation, FitsEveryTypeAndPlacementOfOddSizes) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t columns : kOddSizes)
        for (const Placement placement : {Placement::kContiguous, Placement::kGaps}) {
          const Tensor x = Tensor(type, {3, columns}, placement).normal(5), dy = Tensor(type, {3, columns}).normal(6);
          Tensor y(type, {3, columns}, placement), slope(type, {3, columns}), dx(type, {3, columns}, placement);
          activation_forward(Activation::kGelu, x.view(), y.view(), slope.view());
          activation_backward(Activation::kGelu, x.view(), dy.view(), dx.view());
          x.each([&](int64_t r, int64_t c, int64_t, int64_t) {
            const double at = x.get(r, c), unit = 1.01 * rounding(type) + 8 * rounding(arithmetic(type));
            EXPECT_NEAR(y.get(r, c), double(value(Activation::kGelu, at)), unit * std::max(0x1p-5, std::abs(at)));
            const double expected = double(derivative(Activation::kGelu, at));
            EXPECT_NEAR(slope.get(r, c), expected, unit * std::max(0.25, std::abs(expected)));
            const double product = expected * dy.get(r, c);
            EXPECT_NEAR(dx.get(r, c), product, unit * std::max({0.25, std::abs(product), std::abs(dy.get(r, c))}))
                << name(type) << " " << columns << " " << set;
          });
        }
  });
}

TEST(Activation, SavedSlopeGivesTheSameGradient) {
  const Tensor x = Tensor(DType::kFloat32, {5, 129}).normal(1), dy = Tensor(DType::kFloat32, {5, 129}).normal(2);
  for (const Activation f : kAll) {
    Tensor y(DType::kFloat32, {5, 129}), slope = y, dx = y, other = y;
    activation_forward(f, x.view(), y.view(), slope.view());
    activation_backward(f, x.view(), dy.view(), dx.view());
    activation_backward(slope.view(), dy.view(), other.view());
    EXPECT_TRUE(same_bits(dx, other)) << name(f);
    Tensor in_place = x;
    activation_forward(f, in_place.view(), in_place.view());
    EXPECT_TRUE(same_bits(y, in_place)) << name(f);
  }
}

TEST(Activation, GradientsAreCentralDifferences) {
  for (const Activation f : kAll) {
    Tensor x = Tensor(DType::kFloat64, {3, 7}).normal(3), y(DType::kFloat64, {3, 7}), dx = y;
    const Tensor dy = Tensor(DType::kFloat64, {3, 7}).normal(4);
    activation_backward(f, x.view(), dy.view(), dx.view());
    EXPECT_TRUE(is_gradient(dx, x, [&] { return activation_forward(f, x.view(), y.view()), dot(dy, y); })) << name(f);

    Tensor pair = Tensor(DType::kFloat64, {3, 14}).normal(5),
           dpair = Tensor(DType::kFloat64, {3, 14}, Placement::kGaps);
    gated_backward(f, pair.view(), dy.view(), dpair.view());
    EXPECT_TRUE(is_gradient(dpair, pair, [&] { return gated_forward(f, pair.view(), y.view()), dot(dy, y); }))
        << name(f);
  }
}

TEST(Activation, GatedIsTheProductOfItsHalves) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes) {
      const Tensor x = Tensor(type, {3, 130}, Placement::kGaps).normal(7);
      Tensor y(type, {3, 65});
      gated_forward(Activation::kSilu, x.view(), y.view());
      y.each([&](int64_t r, int64_t c, int64_t, int64_t) {
        const double expected = double(value(Activation::kSilu, x.get(r, c))) * x.get(r, c + 65);
        EXPECT_NEAR(y.get(r, c), expected,
                    (1.01 * rounding(type) + 8 * rounding(arithmetic(type))) * std::abs(expected) +
                        (type == DType::kFloat16 ? 0x1p-25 : 1e-12))
            << name(type) << " " << set;
      });
      Tensor dx = x;
      const Tensor dy = Tensor(type, {3, 65}).normal(8);
      Tensor beside(type, {3, 130});
      gated_backward(Activation::kSilu, x.view(), dy.view(), beside.view());
      gated_backward(Activation::kSilu, dx.view(), dy.view(), dx.view());
      EXPECT_TRUE(same_bits(dx, beside)) << "in place, " << name(type);
    }
  });
}

TEST(Activation, HasTheSameBitsForAnyThreadsAndWithOrWithoutOtherRows) {
  const Tensor x = Tensor(DType::kFloat32, {70, 1111}).normal(9);
  const Tensor all = same_for_any_threads([&](const Call& call) {
    Tensor y(DType::kFloat32, {70, 1111});
    activation_forward(Activation::kGelu, x.view(), y.view(), {}, call);
    return y;
  });
  Tensor one(DType::kFloat32, {1, 1111});
  activation_forward(Activation::kGelu, slice(x.view(), 0, 37, 38), one.view());
  EXPECT_TRUE(same_bits(one.view(), slice(all.view(), 0, 37, 38)));
}

TEST(Activation, NamesWhatIsWrong) {
  Tensor x(DType::kFloat32, {2, 3}), flat(DType::kFloat32, {6}), wide(DType::kFloat64, {2, 3}),
      ints(DType::kInt32, {2, 3});
  const Tensor turned = Tensor(DType::kFloat32, {2, 3}, Placement::kTransposed);
  const auto forward = [&](View<const void> in, View<void> out) {
    return [=] { activation_forward(Activation::kRelu, in, out); };
  };
  EXPECT_EQ(message_of<ShapeError>(forward(flat.view(), x.view())),
            "activation_forward: x has shape {6}, expected {rows, columns}; view all axes but the last as one");
  EXPECT_EQ(message_of<ShapeError>(forward(turned.view(), x.view())),
            "activation_forward: x has a step of 2 between columns, expected 1; copy it");
  EXPECT_EQ(message_of<DtypeError>(forward(ints.view(), x.view())),
            "activation_forward: x has type int32, expected float32, float64, float16 or bfloat16; convert it");
  EXPECT_EQ(
      message_of<DtypeError>(forward(x.view(), wide.view())),
      "activation_forward: y has type float64, expected float32, float16 or bfloat16; float64 goes with float64 alone, "
      "convert one of them");
  EXPECT_EQ(message_of<ShapeError>([&] { gated_forward(Activation::kSilu, x.view(), x.view()); }),
            "gated_forward: x has shape {2, 3}, expected an even number of columns, {a | b}; pass both halves");
}

}  // namespace
}  // namespace qkv::nn::testing
