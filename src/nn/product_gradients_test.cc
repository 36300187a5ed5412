#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "nn/product.h"
#include "nn/test_support.h"
#include "qkv/error.h"
#include "tests/support/compare.h"
#include "tests/support/message.h"
#include "tests/support/targets.h"
#include "tests/support/tensor.h"

namespace qkv::nn {
namespace {

using testing::each_instruction_set;
using testing::message_of;
using testing::Placement;
using testing::same_bits;
using testing::slice;
using testing::Tensor;

template <class T> constexpr double kRounding = std::numeric_limits<T>::epsilon() / 2;
constexpr int64_t kChunk = 256;
bool fuses(const std::string& instruction_set) {
  return instruction_set.starts_with("AVX") || instruction_set == "NEON";
}

struct Size {
  int64_t m, n, k;
};
constexpr Size kSizes[] = {{1, 1, 1},     {3, 65, 63},  {63, 13, 129},  {65, 129, 8},
                           {256, 24, 40}, {300, 5, 65}, {600, 129, 65}, {257, 300, 150}};

struct Problem {
  Tensor dy, x, dw, db;
  Problem(Size s, DType type, DType gradient, Placement placement = Placement::kContiguous)
      : dy(type, {s.m, s.n}, placement),
        x(type, {s.m, s.k}, placement),
        dw(gradient, {s.n, s.k}, placement),
        db(gradient, {s.n}) {
    dy.normal(1), x.normal(2), dw.normal(3), db.normal(4);
  }
  int64_t rows() const { return x.layout().shape[0]; }
  /// The definition: chunks from +0, added in their order.
  template <class T, class G> G chunks(int64_t n, int64_t k) const {
    const View<const T> out = dy.as<T>(), in = x.as<T>();
    G sum = G(dw.get(n, k));
    for (int64_t first = 0; first < rows(); first += kChunk) {
      T part = 0;
      for (int64_t m = first; m < std::min(rows(), first + kChunk); ++m) part = std::fma(out(m, n), in(m, k), part);
      sum = G(sum + part);
    }
    return sum;
  }
};

template <class T> class Gradients : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Gradients, Types);

TYPED_TEST(Gradients, OfWeightsAreWithinTheBoundOfASumInOrder) {
  each_instruction_set([&](const std::string& name) {
    for (const Size s : kSizes) {
      const Problem p(s, kDType<TypeParam>, kDType<TypeParam>);
      Tensor dw = p.dw;
      const View<const TypeParam> dy = p.dy.as<TypeParam>(), x = p.x.as<TypeParam>();
      product_transposed(dy, x, dw.view(), Into::kAdd);
      dw.each([&](int64_t n, int64_t k, int64_t, int64_t) {
        long double sum = p.dw.get(n, k), magnitude = std::fabs(sum);
        for (int64_t m = 0; m < s.m; ++m) {
          const long double term = static_cast<long double>(dy(m, n)) * x(m, k);
          sum += term;
          magnitude += std::fabs(term);
        }
        const long double roundings = (std::min(s.m, kChunk) + s.m / kChunk + 2) * (fuses(name) ? 1 : 2);
        ASSERT_LE(std::fabs(dw.get(n, k) - sum), kRounding<TypeParam> * roundings * magnitude) << name;
      });
    }
  });
}

template <class T, class G> void expect_chunks(Placement placement) {
  each_instruction_set([&](const std::string& name) {
    if (!fuses(name)) return;
    for (const Size s : kSizes) {
      const Problem p(s, kDType<T>, kDType<G>, placement);
      Tensor dw = p.dw, expected = p.dw;
      product_transposed(p.dy.view(), p.x.view(), dw.view(), Into::kAdd);
      expected.fill([&](int64_t n, int64_t k, int64_t, int64_t) { return p.chunks<T, G>(n, k); });
      ASSERT_TRUE(same_bits(dw.view(), expected.view())) << name << ' ' << s.m << ' ' << s.n << ' ' << s.k;
    }
  });
}
TEST(WeightGradients, AreSumsOfChunksInOrderWhateverTheTypesAndTheRowStrides) {
  expect_chunks<float, float>(Placement::kContiguous);
  expect_chunks<double, double>(Placement::kGaps);
  expect_chunks<float, double>(Placement::kContiguous);
  expect_chunks<double, float>(Placement::kGaps);
}

TEST(WeightGradients, ReplaceWhatWasThere) {
  for (const DType gradient : {DType::kFloat32, DType::kFloat64}) {
    const Problem p({300, 65, 63}, DType::kFloat32, gradient);
    Tensor written = p.dw, added = p.dw;
    written.poison();
    added.fill(0);
    product_transposed(p.dy.view(), p.x.view(), written.view(), Into::kWrite);
    product_transposed(p.dy.view(), p.x.view(), added.view(), Into::kAdd);
    EXPECT_TRUE(same_bits(written.view(), added.view()));
  }
}

TEST(WeightGradients, OfNoRowsAreZero) {
  Problem p({0, 5, 3}, DType::kFloat32, DType::kFloat64);
  const Tensor before = p.dw;
  product_transposed(p.dy.view(), p.x.view(), p.dw.view(), Into::kAdd);
  EXPECT_TRUE(same_bits(before.view(), p.dw.view()));
  product_transposed(p.dy.view(), p.x.view(), p.dw.view(), Into::kWrite);
  column_sums(p.dy.view(), p.db.view(), Into::kWrite);
  EXPECT_TRUE(same_bits(p.dw.view(), Tensor(DType::kFloat64, {5, 3}).fill(0).view()));
  EXPECT_TRUE(same_bits(p.db.view(), Tensor(DType::kFloat64, {5}).fill(0).view()));
}

TEST(WeightGradients, OfPartsThatBeginAtChunksAreThoseOfTheWhole) {
  const Problem p({1000, 70, 90}, DType::kFloat32, DType::kFloat32);
  Tensor whole = p.dw, parts = p.dw, whole_bias = p.db, bias_parts = p.db;
  product_transposed(p.dy.view(), p.x.view(), whole.view(), Into::kAdd);
  column_sums(p.dy.view(), whole_bias.view(), Into::kAdd);
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 512}, {512, 768}, {768, 1000}}) {
    const View<const void> dy = slice(p.dy.view(), 0, first, last);
    product_transposed(dy, slice(p.x.view(), 0, first, last), parts.view(), Into::kAdd);
    column_sums(dy, bias_parts.view(), Into::kAdd);
  }
  EXPECT_TRUE(same_bits(whole.view(), parts.view()));
  EXPECT_TRUE(same_bits(whole_bias.view(), bias_parts.view()));
}

TEST(WeightGradients, HaveTheSameBitsForAnyNumberOfThreadsAndAllocateOnce) {
  for (const Size s : {Size{700, 384, 128}, Size{300, 65, 600}}) {
    const Problem p(s, DType::kFloat32, DType::kFloat32);
    Tensor first;
    for (const int threads : {1, 2, 3, 8}) {
      ThreadPool pool(threads);
      Workspace workspace;
      const Call call{&pool, &workspace, {}};
      Tensor dw = p.dw;
      product_transposed(p.dy.view(), p.x.view(), dw.view(), Into::kWrite, call);
      if (!first) first = dw;
      EXPECT_TRUE(same_bits(first.view(), dw.view())) << threads << " threads";
      const size_t held = workspace.bytes();
      product_transposed(p.dy.view(), p.x.view(), dw.view(), Into::kWrite, call);
      EXPECT_EQ(workspace.bytes(), held);
    }
  }
}

TEST(WeightGradients, OfNarrowTensorsAreThoseOfWidenedOnes) {
  each_instruction_set([&](const std::string& name) {
    for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
      const Problem p({300, 65, 130}, type, DType::kFloat32, Placement::kContiguous);
      Tensor dy(DType::kFloat32, {300, 65}), x(DType::kFloat32, {300, 130});
      dy.fill([&](int64_t m, int64_t n, int64_t, int64_t) { return p.dy.get(m, n); });
      x.fill([&](int64_t m, int64_t k, int64_t, int64_t) { return p.x.get(m, k); });
      Tensor expected = p.dw, dw = p.dw, expected_db = p.db, db = p.db;
      product_transposed(dy.view(), x.view(), expected.view(), Into::kAdd);
      product_transposed(p.dy.view(), p.x.view(), dw.view(), Into::kAdd);
      EXPECT_TRUE(same_bits(expected.view(), dw.view())) << name;
      product_transposed(p.dy.view(), x.view(), dw.view(), Into::kWrite);
      product_transposed(dy.view(), x.view(), expected.view(), Into::kWrite);
      EXPECT_TRUE(same_bits(expected.view(), dw.view())) << name << ", x wide";
      column_sums(dy.view(), expected_db.view(), Into::kAdd);
      column_sums(p.dy.view(), db.view(), Into::kAdd);
      EXPECT_TRUE(same_bits(expected_db.view(), db.view())) << name;
    }
  });
}

template <class T, class G> void expect_column_sums(Placement placement) {
  for (const Size s : {Size{1, 1, 1}, Size{63, 65, 1}, Size{700, 129, 1}}) {
    const Problem p(s, kDType<T>, kDType<G>, placement);
    Tensor expected = p.db, two(kDType<G>, {s.n, 2});
    expected.fill([&](int64_t n, int64_t, int64_t, int64_t) {
      G sum = G(p.db.get(n));
      for (int64_t first = 0; first < s.m; first += kChunk) {
        T part = 0;
        for (int64_t m = first; m < std::min(s.m, first + kChunk); ++m) part += T(p.dy.get(m, n));
        sum = G(sum + part);
      }
      return sum;
    });
    each_instruction_set([&](const std::string& name) {
      Tensor db = p.db;
      column_sums(p.dy.view(), db.view(), Into::kAdd);
      EXPECT_TRUE(same_bits(expected.view(), db.view())) << name;
      // Every other element.
      two.fill([&](int64_t n, int64_t i, int64_t, int64_t) { return i == 0 ? p.db.get(n) : 42; });
      View<void> spread = two.view();
      spread.rank = 1;
      spread.shape[1] = 1;
      column_sums(p.dy.view(), spread, Into::kAdd);
      for (int64_t n = 0; n < s.n; ++n) {
        EXPECT_EQ(two.get(n, 0), expected.get(n));
        EXPECT_EQ(two.get(n, 1), 42);
      }
    });
  }
}
TEST(ColumnSums, AreSumsOfChunksInOrderWhateverTheTypesAndTheStrides) {
  expect_column_sums<float, float>(Placement::kContiguous);
  expect_column_sums<double, double>(Placement::kGaps);
  expect_column_sums<float, double>(Placement::kGaps);
  expect_column_sums<double, float>(Placement::kContiguous);
}

/// loss = sum of c * (x W^T + bias), as everybody would write it.
double loss(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& c) {
  double sum = 0;
  c.each([&](int64_t m, int64_t n, int64_t, int64_t) {
    double y = bias.get(n);
    for (int64_t k = 0; k < w.layout().shape[1]; ++k) y += x.get(m, k) * w.get(n, k);
    sum += c.get(m, n) * y;
  });
  return sum;
}

/// Of a loss by every element of t, which the loss looks at.
void expect_differences(Tensor& t, const Tensor& gradient, const std::function<double()>& f) {
  constexpr double kStep = 1e-4;
  t.each([&](int64_t i, int64_t j, int64_t, int64_t) {
    const double at = t.get(i, j);
    t.set(at + kStep, i, j);
    const double above = f();
    t.set(at - kStep, i, j);
    const double below = f();
    t.set(at, i, j);
    EXPECT_NEAR(gradient.get(i, j), (above - below) / (2 * kStep), 1e-8);
  });
}

TEST(LinearGradients, AgreeWithCentralDifferences) {
  const Size s{7, 5, 9};
  const DType type = DType::kFloat64;
  Tensor x(type, {s.m, s.k}), w(type, {s.n, s.k}), bias(type, {s.n}), c(type, {s.m, s.n});
  x.normal(1), w.normal(2), bias.normal(3), c.normal(4);
  Tensor dx(type, {s.m, s.k}), dw(type, {s.n, s.k}), db(type, {s.n});
  PackedMatrix<double> b;
  b.pack(w.view());
  product(c.view(), b, dx.view());
  product_transposed(c.view(), x.view(), dw.view(), Into::kWrite);
  column_sums(c.view(), db.view(), Into::kWrite);
  const auto f = [&] { return loss(x, w, bias, c); };
  expect_differences(x, dx, f);
  expect_differences(w, dw, f);
  expect_differences(bias, db, f);
}

TEST(GradientErrors, SayWhatWasExpected) {
  Problem p({4, 5, 3}, DType::kFloat32, DType::kFloat32);
  EXPECT_EQ(
      message_of<ShapeError>([&] {
        product_transposed(p.dy.view(), Tensor(DType::kFloat32, {3, 3}).view(), p.dw.view(), Into::kAdd);
      }),
      "product_transposed: x has shape {3, 3}, expected {4, 3}; reshape it, or pass the tensor that belongs here");
  EXPECT_EQ(
      message_of<ShapeError>([&] {
        product_transposed(p.dy.view(), p.x.view(), Tensor(DType::kFloat32, {3, 5}).view(), Into::kAdd);
      }),
      "product_transposed: dw has shape {3, 5}, expected {5, 3}; reshape it, or pass the tensor that belongs here");
  EXPECT_EQ(message_of<DtypeError>([&] {
              product_transposed(p.dy.view(), p.x.view(), Tensor(DType::kFloat16, {5, 3}).view(), Into::kAdd);
            }),
            "product_transposed: dw has type float16, expected float32 or float64: gradients are sums; allocate it so");
  EXPECT_EQ(message_of<DtypeError>([&] {
              product_transposed(p.dy.view(), Tensor(DType::kFloat64, {4, 3}).view(), p.dw.view(), Into::kAdd);
            }),
            "product_transposed: x has type float64, expected float32, float16 or bfloat16; convert it");
  EXPECT_EQ(message_of<ShapeError>([&] { column_sums(p.dy.view(), p.dw.view(), Into::kAdd); }),
            "column_sums: db has shape {5, 3}, expected {5}; reshape it, or pass the tensor that belongs here");
}

}  // namespace
}  // namespace qkv::nn

namespace qkv::nn::testing {
namespace {

TEST(ColumnSums, AreSumsForEveryTypeAndThreads) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t rows : {0, 1, 31, 700}) {
        const Tensor x = Tensor(type, {rows, 129}, Placement::kGaps).normal(4);
        const Tensor sums = same_for_any_threads([&](const Call& call) {
          Tensor s = Tensor(arithmetic(type), {129}).fill(1);
          column_sums(x.view(), s.view(), Into::kAdd, call);
          return s;
        });
        for (int64_t c = 0; c < 129; ++c) {
          double expected = 1, size = 1;
          for (int64_t r = 0; r < rows; ++r) expected += x.get(r, c), size += std::abs(x.get(r, c));
          EXPECT_NEAR(sums.get(c), expected,
                      rounding(type) * std::abs(expected) + 3 * rounding(arithmetic(type)) * size)
              << name(type) << " " << rows << " " << set;
        }
      }
  });
}

}  // namespace
}  // namespace qkv::nn::testing
