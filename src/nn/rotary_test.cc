#include <gtest/gtest.h>

#include <cmath>

#include "kernels/rotary.h"
#include "qkv/positions.h"
#include "tests/support/compare.h"
#include "tests/support/message.h"
#include "tests/support/targets.h"

namespace qkv {
namespace {

using testing::Bound;
using testing::each_instruction_set;
using testing::int32s;
using testing::message_of;
using testing::Placement;
using testing::same_bits;
using testing::slice;
using testing::Tensor;
using testing::tensor;

constexpr DType kFloating[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
constexpr RotaryPairs kBothPairs[] = {RotaryPairs::kHalves, RotaryPairs::kNeighbours};

TEST(RotaryAngles, AreThoseOfLongDoubleOnEveryInstructionSet) {
  each_instruction_set([](const std::string& set) {
    for (const int64_t n : {1, 2, 3, 31, 64, 65}) {
      const auto count = size_t(n);
      std::vector<double> frequency, cosine(count), sine(count);
      std::vector<float> short_cosine(count), short_sine(count);
      for (int64_t i = 0; i < n; ++i) frequency.push_back(std::pow(10000, -double(i) / double(n)));
      for (const double position : {0.0, 1.0, -3.0, 511.0, 131071.0, -131071.0, 1e6 + 1, 0x1p30, -0x1p30}) {
        kernels::rotary_kernels<double>().angles(frequency.data(), n, position, 1.25, cosine.data(), sine.data());
        kernels::rotary_kernels<float>().angles(frequency.data(), n, position, 1.25, short_cosine.data(),
                                                short_sine.data());
        for (size_t i = 0; i < size_t(n); ++i) {
          const long double angle = position * frequency[i];
          ASSERT_NEAR(cosine[i], double(1.25L * std::cos(angle)), 5e-16) << set << " " << position << " " << i;
          ASSERT_NEAR(sine[i], double(1.25L * std::sin(angle)), 5e-16) << set << " " << position << " " << i;
          ASSERT_EQ(short_cosine[i], float(cosine[i])) << set;
          ASSERT_EQ(short_sine[i], float(sine[i])) << set;
        }
      }
    }
  });
}

TEST(RotaryAngles, HaveNoErrorNearMultiplesOfARightAngle) {
  each_instruction_set([](const std::string& set) {
    for (int64_t q = -200000; q <= 200000; q += 997) {
      const double angle = double(q) * 1.57079632679489661923, one = 1;
      double cosine = 9, sine = 9;
      kernels::rotary_kernels<double>().angles(&one, 1, angle, 1, &cosine, &sine);
      ASSERT_NEAR(cosine, double(std::cos((long double)angle)), 2.3e-16) << set << " " << q;
      ASSERT_NEAR(sine, double(std::sin((long double)angle)), 2.3e-16) << set << " " << q;
    }
  });
}

/// One call, and the same from the formula in T (float: what a plain evaluation would give) or double.
struct Example {
  DType type = DType::kFloat32;
  int64_t batch = 2, heads = 3, length = 5, size = 64, dim = 64;
  RotaryPairs pairs = RotaryPairs::kHalves;
  Placement placement = Placement::kContiguous;
  int64_t offset = 100;

  RotaryOptions options() const { return {.dim = dim, .base = 500, .pairs = pairs}; }
  Tensor input() const {
    Tensor x(type, {batch, heads, length, size}, placement);
    x.normal(7);
    return x;
  }
  template <class T> double expected(const Tensor& x, int64_t b, int64_t h, int64_t l, int64_t e) const {
    if (e >= dim) return x.get(b, h, l, e);
    const bool halves = pairs == RotaryPairs::kHalves;
    const int64_t n = dim / 2, i = halves ? e % n : e / 2, first = halves ? i : 2 * i,
                  second = first + (halves ? n : 1);
    const double angle = double(l + offset) * std::pow(500.0, -2.0 * double(i) / double(dim));
    const T c = T(std::cos(angle)), s = T(std::sin(angle)), x0 = T(x.get(b, h, l, first)),
            x1 = T(x.get(b, h, l, second));
    return e == first ? x0 * c - x1 * s : x1 * c + x0 * s;
  }
  double plain(const Tensor& x, int64_t b, int64_t h, int64_t l, int64_t e) const {
    const double y = type == DType::kFloat64 ? expected<double>(x, b, h, l, e) : expected<float>(x, b, h, l, e);
    return tensor(type, {1}, {y}).get(0);
  }
};

TEST(Rotary, IsTheFormulaForEveryTypeSizeAndPlacement) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kFloating)
      for (const RotaryPairs pairs : kBothPairs)
        for (const Placement placement : testing::kPlacements)
          for (const int64_t dim : {2, 6, 62, 64, 126, 130}) {
            const Example e{type, 2, 3, 5, dim + dim % 4, dim, pairs, placement};
            const Tensor x = e.input();
            Tensor y(type, {2, 3, 5, e.size}, placement);
            rotary_forward(Rotary(e.options()), x.view(), {.offset = e.offset}, y.view());
            Bound bound("y", type);
            x.each([&](auto... at) { bound.add(y.get(at...), e.plain(x, at...), e.expected<double>(x, at...)); });
            ASSERT_TRUE(bound.holds()) << set << " " << name(type) << " " << name(placement) << " " << dim;
          }
  });
}

TEST(Rotary, HasTheSameBitsInPlaceAndInEveryPlacement) {
  for (const DType type : kFloating)
    for (const RotaryPairs pairs : kBothPairs) {
      Example e{type};
      e.pairs = pairs, e.dim = 30, e.size = 33;
      const Rotary rotary(e.options());
      Tensor expected = e.input();
      rotary_forward(rotary, expected.view(), {.offset = 9}, expected.view());
      for (const Placement placement : testing::kPlacements) {
        e.placement = placement;
        Tensor x = e.input();
        rotary_forward(rotary, x.view(), {.offset = 9}, x.view());
        ASSERT_TRUE(same_bits(x, expected)) << name(type) << " " << name(placement);
      }
    }
}

TEST(Rotary, RowsDoNotDependOnBatchLengthOffsetOrThreads) {
  for (const RotaryPairs pairs : kBothPairs) {
    Example e;
    e.pairs = pairs, e.length = 75, e.offset = 0;
    const Rotary rotary(e.options());
    const Tensor x = e.input();
    Tensor all(e.type, {2, 3, 75, 64});
    rotary_forward(rotary, x.view(), {}, all.view());
    for (const int threads : {1, 2, 3, 8}) {
      ThreadPool pool(threads);
      Tensor again(e.type, {2, 3, 75, 64});
      rotary_forward(rotary, x.view(), {}, again.view(), {.executor = &pool});
      ASSERT_TRUE(same_bits(again, all));
    }
    for (int64_t l = 0; l < 75; ++l) {
      Tensor one(e.type, {1, 1, 1, 64});
      const auto row = slice(slice(slice(x.view(), 0, 1, 2), 1, 2, 3), 2, l, l + 1);
      const auto full = slice(slice(slice(View<const void>(all.view()), 0, 1, 2), 1, 2, 3), 2, l, l + 1);
      rotary_forward(rotary, row, {.offset = l}, one.view());
      ASSERT_TRUE(same_bits(one.view(), full)) << l;
    }
  }
}

TEST(Rotary, PositionsComeAsOffsetPerEntryOrPerRow) {
  const Example e;
  const Rotary rotary(e.options());
  const Tensor x = e.input();
  Tensor by_row(e.type, {2, 3, 5, 64}), by_entry(e.type, {2, 3, 5, 64}), mixed(e.type, {2, 3, 5, 64});
  const Tensor ids = tensor(DType::kInt32, {2, 5}, {7, 8, 9, 10, 11, -2, -1, 0, 1, 2});
  const Tensor starts = int32s({7, -2}), less = tensor(DType::kInt32, {1, 5}, {4, 5, 6, 7, 8}), rest = int32s({2, -7});
  rotary_forward(rotary, x.view(), {.ids = ids.as<int32_t>()}, by_row.view());
  rotary_forward(rotary, x.view(), {.offsets = starts.as<int32_t>()}, by_entry.view());
  rotary_forward(rotary, x.view(), {.offset = 1, .offsets = rest.as<int32_t>(), .ids = less.as<int32_t>()},
                 mixed.view());
  EXPECT_TRUE(same_bits(by_row, by_entry));
  EXPECT_TRUE(same_bits(by_row, mixed));
}

TEST(Rotary, GradientIsTheCentralDifference) {
  for (const RotaryPairs pairs : kBothPairs) {
    Example e{DType::kFloat64, 1, 2, 3, 7, 6, pairs};
    RotaryOptions options = e.options();
    options.scaling = YarnScaling{.factor = 4, .original_length = 32};
    const Rotary rotary(options);
    Tensor x = e.input(), dy(e.type, {1, 2, 3, 7}), dx(e.type, {1, 2, 3, 7}), y(e.type, {1, 2, 3, 7});
    dy.normal(8);
    rotary_backward(rotary, dy.view(), {.offset = 5}, dx.view());
    const auto loss = [&] {
      rotary_forward(rotary, x.view(), {.offset = 5}, y.view());
      double sum = 0;
      y.each([&](auto... at) { sum += y.get(at...) * dy.get(at...); });
      return sum;
    };
    x.each([&](auto... at) {
      const double value = x.get(at...), h = 0x1p-10;
      x.set(value + h, at...);
      const double above = loss();
      x.set(value - h, at...);
      const double below = loss();
      x.set(value, at...);
      ASSERT_NEAR(dx.get(at...), (above - below) / (2 * h), 1e-10);
    });
  }
}

TEST(Rotary, BackwardOfForwardGivesTheRowBackTimesTheSquareOfTheFactor) {
  const Example e{DType::kFloat64};
  RotaryOptions options = e.options();
  options.scaling = YarnScaling{.factor = 4, .original_length = 32, .attention_factor = 1.5};
  Tensor x = e.input(), y(e.type, {2, 3, 5, 64});
  rotary_forward(Rotary(options), x.view(), {.offset = 1000}, y.view());
  rotary_backward(Rotary(options), y.view(), {.offset = 1000}, y.view());
  x.each([&](auto... at) { ASSERT_NEAR(y.get(at...), 2.25 * x.get(at...), 1e-14); });
}

TEST(Rotary, ProductsDependOnDistancesAlone) {
  for (const RotaryPairs pairs : kBothPairs) {
    const Example e{DType::kFloat64, 1, 2, 1, 64, 64, pairs};
    const Rotary rotary(e.options());
    const Tensor x = e.input();  // head 0 is the query, head 1 the key
    const auto product = [&](int64_t query, int64_t key) {
      Tensor q(e.type, {1, 1, 1, 64}), k(e.type, {1, 1, 1, 64});
      rotary_forward(rotary, slice(x.view(), 1, 0, 1), {.offset = query}, q.view());
      rotary_forward(rotary, slice(x.view(), 1, 1, 2), {.offset = key}, k.view());
      double sum = 0;
      for (int64_t i = 0; i < 64; ++i) sum += q.get(0, 0, 0, i) * k.get(0, 0, 0, i);
      return sum;
    };
    const double near = product(7, 3);
    EXPECT_NEAR(product(100007, 100003), near, 1e-9);
    EXPECT_NEAR(product(0, -4), near, 1e-12);
    EXPECT_GT(std::abs(product(7, 4) - near), 1e-3);
  }
}

TEST(Rotary, TableHoldsWhatRowsAreTurnedWith) {
  const Rotary rotary({.dim = 10, .base = 100});
  Tensor cosine(DType::kFloat32, {3, 5}), sine(DType::kFloat32, {3, 5});
  const Tensor ids = tensor(DType::kInt32, {1, 3}, {0, 9, 1000});
  rotary_table(rotary, {.ids = ids.as<int32_t>()}, cosine.view(), sine.view());
  for (int64_t l = 0; l < 3; ++l)
    for (int64_t i = 0; i < 5; ++i) {
      const double angle = ids.get(0, l) * std::pow(100, -0.2 * double(i));
      EXPECT_FLOAT_EQ(float(cosine.get(l, i)), float(std::cos(angle)));
      EXPECT_FLOAT_EQ(float(sine.get(l, i)), float(std::sin(angle)));
    }
}

TEST(Rotary, WritesEverythingOfEmptyAndUnturnedTensors) {
  Tensor x(DType::kFloat32, {2, 3, 5, 8}), y(DType::kFloat32, {2, 3, 5, 8});
  x.normal(1);
  rotary_forward(Rotary({.dim = 0}), x.view(), {}, y.view());
  EXPECT_TRUE(same_bits(x, y));
  Tensor none(DType::kFloat32, {2, 3, 0, 8});
  rotary_forward(Rotary({.dim = 8}), none.view(), {}, none.view());
}

TEST(RotaryErrors, SayWhatIsWrong) {
  const Rotary rotary({.dim = 8});
  Tensor x(DType::kFloat32, {2, 3, 5, 8}), narrow(DType::kFloat32, {2, 3, 5, 6}), half(DType::kFloat16, {2, 3, 5, 8});
  Tensor rows(DType::kFloat32, {5, 8});
  const auto turn = [&](Tensor& from, Tensor& to, const RowPositions& at) {
    return [&] { rotary_forward(rotary, from.view(), at, to.view()); };
  };
  EXPECT_EQ(message_of<ShapeError>(turn(rows, rows, {})),
            "rotary_forward: x has shape {5, 8}, expected {batch, heads, length, size}");
  EXPECT_EQ(message_of<ShapeError>(turn(x, narrow, {})),
            "rotary_forward: y has shape {2, 3, 5, 6} but x has {2, 3, 5, 8}; they must agree");
  EXPECT_EQ(message_of<DtypeError>(turn(x, half, {})),
            "rotary_forward: y has type float16 but x has float32; they must agree");
  EXPECT_EQ(
      message_of<ShapeError>(turn(narrow, narrow, {})),
      "rotary_forward: x has shape {2, 3, 5, 6} but 8 elements of a row shall turn; expected a last axis of 8 or more");
  const Tensor ids = tensor(DType::kInt32, {2, 4}, {0, 0, 0, 0, 0, 0, 0, 0}), three = int32s({1, 2, 3});
  EXPECT_EQ(message_of<ShapeError>(turn(x, x, {.ids = ids.as<int32_t>()})),
            "rotary_forward: ids has shape {2, 4}, expected {2, 5} or {1, 5}: one position a row");
  EXPECT_EQ(message_of<ShapeError>(turn(x, x, {.offsets = three.as<int32_t>()})),
            "rotary_forward: offsets has shape {3}, expected {2} or {1}: one position an entry of the batch");
  EXPECT_EQ(
      message_of<OptionError>(turn(x, x, {.offset = (int64_t{1} << 30) - 3})),
      "rotary_forward: row 4 of entry 0 stands at position 1073741825, expected -2^30 to 2^30; count from a later token");
}

// ---- frequencies: pinned from transformers 4.57.6, its formulas run in double ----

struct Pinned {
  const char* what;
  RotaryOptions options;
  std::optional<int64_t> length;
  std::vector<double> frequencies;
  double attention_factor;
};

const std::vector<double> kPlain{1,    0.316227766016838,   0.1,   0.0316227766016838,
                                 0.01, 0.00316227766016838, 0.001, 0.000316227766016838};
const std::vector<double> kShort{1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0}, kLong{1, 2, 4, 8, 12, 20, 30, 40};

std::vector<Pinned> pinned() {
  const auto of = [](RotaryScaling scaling, double base = 10000) {
    return RotaryOptions{.dim = 16, .base = base, .scaling = std::move(scaling)};
  };
  const LongRopeScaling longrope{kShort, kLong, 4096, 32, {}};
  return {
      {"plain", of({}), {}, kPlain, 1},
      {"linear",
       of(LinearScaling{4}),
       {},
       {0.25, 0.0790569415042095, 0.025, 0.00790569415042095, 0.0025, 0.000790569415042095, 0.00025,
        7.90569415042095e-05},
       1},
      {"dynamic, long",
       of(DynamicNtkScaling{2, 2048}),
       5000,
       {1, 0.260517094454186, 0.0678691565028514, 0.0176810754551793, 0.00460622240440853, 0.00119999967720629,
        0.000312620429251743, 8.14429658956846e-05},
       1},
      {"dynamic, short", of(DynamicNtkScaling{2, 2048}), 100, kPlain, 1},
      {"dynamic, of no length", of(DynamicNtkScaling{2, 2048}), {}, kPlain, 1},
      {"yarn",
       of(YarnScaling{.factor = 4, .original_length = 4096}),
       {},
       {1, 0.316227766016838, 0.1, 0.0256935059888681, 0.00625, 0.00138349647632367, 0.00025, 7.90569415042095e-05},
       1.138629436111989},
      {"yarn with an exact ramp",
       of(YarnScaling{
           .factor = 16, .original_length = 4096, .beta_fast = 24, .beta_slow = 2, .ramp = YarnScaling::Ramp::kExact}),
       {},
       {1, 0.316227766016838, 0.1, 0.0298088244485352, 0.00508280730031184, 0.000233767150489861, 6.25e-05,
        1.97642353760524e-05},
       1.277258872223978},
      {"yarn with mscale",
       of(YarnScaling{.factor = 40, .original_length = 4096, .mscale = 0.707, .mscale_all_dim = 1}),
       {},
       {1, 0.316227766016838, 0.1, 0.0239147248050234, 0.005125, 0.000849862121170252, 2.5e-05, 7.90569415042095e-06},
       0.9210423553163399},
      {"yarn with a factor for attention",
       of(YarnScaling{.factor = 4, .original_length = 32, .attention_factor = 1.25}),
       {},
       {1, 0.197642353760524, 0.025, 0.00790569415042095, 0.0025, 0.000790569415042095, 0.00025, 7.90569415042095e-05},
       1.25},
      {"llama3",
       of(Llama3Scaling{}, 500000),
       {},
       {1, 0.193922744748686, 0.0376060309308639, 0.00729266473721711, 0.000524846160992955, 3.42810219595259e-05,
        6.64786987118124e-06, 1.28917317215156e-06},
       1},
      {"longrope, short",
       of(longrope),
       4096,
       {1, 0.301169300968417, 0.0909090909090909, 0.0263523138347365, 0.00769230769230769, 0.00210818510677892,
        0.000555555555555556, 0.000158113883008419},
       1.190238071423808},
      {"longrope, long",
       of(longrope),
       4097,
       {1, 0.158113883008419, 0.025, 0.00395284707521047, 0.000833333333333333, 0.000158113883008419,
        3.33333333333333e-05, 7.90569415042095e-06},
       1.190238071423808},
  };
}

TEST(RotaryScaling, GivesTheNumbersOfTransformers) {
  for (const Pinned& p : pinned()) {
    const Rotary rotary(p.options, p.length);
    EXPECT_EQ(rotary.dim(), 16);
    EXPECT_NEAR(rotary.attention_factor(), p.attention_factor, 1e-15) << p.what;
    for (size_t i = 0; i < 8; ++i)
      EXPECT_NEAR(rotary.frequencies()[i] / p.frequencies[i], 1, 1e-14) << p.what << " " << i;
  }
}

TEST(RotaryScaling, NtkKeepsTheFastestPairAndScalesTheSlowest) {
  const Rotary rotary({.dim = 16, .scaling = NtkScaling{8}});
  EXPECT_EQ(rotary.frequencies()[0], 1);
  EXPECT_NEAR(rotary.frequencies()[7] * 8 / kPlain[7], 1, 1e-14);
}

TEST(RotaryScaling, RefusesOptionsThatMeanNothing) {
  const auto made = [](RotaryOptions o) { return message_of<OptionError>([&] { Rotary rotary(o); }); };
  EXPECT_EQ(made({.dim = 7}), "Rotary: dim is 7, expected an even number, 0 to 2^20: elements turn in pairs");
  EXPECT_EQ(made({.dim = 8, .base = 0.5}), "Rotary: base is 0.5, expected 1 or more");
  EXPECT_EQ(made({.dim = 8, .scaling = LinearScaling{0}}), "Rotary: factor is 0, expected a number above 0");
  EXPECT_EQ(made({.dim = 8, .scaling = LinearScaling{0.25}}),
            "Rotary: a pair turns by 4 a position, expected 0 to 2; look at base and factors");
  EXPECT_EQ(made({.dim = 2, .scaling = NtkScaling{2}}),
            "Rotary: NTK scaling needs a dim of 4 or more, dim is 2; the only pair would be kept as it is");
  EXPECT_EQ(made({.dim = 8, .scaling = DynamicNtkScaling{2}}),
            "Rotary: original_length is 0, expected 1 or more: the length that the model was trained with");
  EXPECT_EQ(made({.dim = 8, .scaling = Llama3Scaling{.low_frequency_factor = 4}}),
            "Rotary: low_frequency_factor is 4 and high_frequency_factor 4; the first must be smaller");
  EXPECT_EQ(made({.dim = 8, .scaling = LongRopeScaling{{1, 1}, {1, 1, 1, 1}, 10, 1, {}}}),
            "Rotary: short_factors has 2 numbers, expected 4: one for each pair of dim 8");
}

}  // namespace
}  // namespace qkv
