#include "nn/product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "qkv/error.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/message.h"
#include "tests/support/targets.h"
#include "tests/support/tensor.h"

namespace qkv::nn {
namespace {

using testing::each_instruction_set;
using testing::Guard;
using testing::GuardedTensor;
using testing::message_of;
using testing::Placement;
using testing::same_bits;
using testing::slice;
using testing::Tensor;

template <class T> constexpr double kRounding = std::numeric_limits<T>::epsilon() / 2;
bool fuses(const std::string& instruction_set) {
  return instruction_set.starts_with("AVX") || instruction_set == "NEON";
}

struct Size {
  int64_t m, n, k;
};
/// Every number of rows of a tile, every width of a panel, several panels and items.
constexpr Size kSizes[] = {{1, 1, 1},   {1, 129, 65}, {2, 65, 63}, {3, 63, 129}, {4, 24, 7},    {5, 9, 129},
                           {6, 40, 65}, {7, 17, 1},   {9, 8, 63},  {12, 32, 65}, {65, 129, 63}, {129, 63, 300}};

/// Transposes the view.
template <class V> V exchanged(V v) {
  std::swap(v.shape[0], v.shape[1]);
  std::swap(v.strides[0], v.strides[1]);
  return v;
}

/// Tensors of y = x B + bias (+ y), and what must come out.
struct Problem {
  Tensor x, b, bias, y;
  Problem(Size s, DType type, Placement placement = Placement::kContiguous)
      : x(type, {s.m, s.k}, placement), b(type, {s.k, s.n}), bias(type, {s.n}), y(type, {s.m, s.n}, placement) {
    x.normal(1), b.normal(2), bias.normal(3), y.normal(4);
  }
  int64_t depth() const { return b.layout().shape[0]; }
  template <class T> long double exact(int64_t m, int64_t n, long double* magnitude) const {
    const View<const T> rows = x.as<T>(), matrix = b.as<T>();
    long double sum = bias.get(n) + static_cast<long double>(y.get(m, n));
    *magnitude = std::fabs(bias.get(n)) + std::fabs(y.get(m, n));
    for (int64_t k = 0; k < depth(); ++k) {
      const long double term = static_cast<long double>(rows(m, k)) * matrix(k, n);
      sum += term;
      *magnitude += std::fabs(term);
    }
    return sum;
  }
  template <class T> T chain(int64_t m, int64_t n) const {
    const View<const T> rows = x.as<T>(), matrix = b.as<T>();
    T sum = 0;
    for (int64_t k = 0; k < depth(); ++k) sum = std::fma(rows(m, k), matrix(k, n), sum);
    return sum + T(bias.get(n)) + T(y.get(m, n));
  }
};

template <class T> class Products : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Products, Types);

TYPED_TEST(Products, AreWithinTheBoundOfASumInOrder) {
  each_instruction_set([&](const std::string& name) {
    for (const Size s : kSizes) {
      const Problem p(s, kDType<TypeParam>);
      Tensor y = p.y;
      PackedMatrix<TypeParam> b;
      b.pack(p.b.view());
      product(p.x.view(), b, y.view(), {p.bias.view(), Into::kAdd});
      y.each([&](int64_t m, int64_t n, int64_t, int64_t) {
        long double magnitude = 0;
        const long double exact = p.template exact<TypeParam>(m, n, &magnitude);
        const long double bound = kRounding<TypeParam> * double(s.k + 3) * (fuses(name) ? 1 : 2) * magnitude;
        ASSERT_LE(std::fabs(y.get(m, n) - exact), bound) << name << ' ' << s.m << 'x' << s.n << 'x' << s.k;
      });
    }
  });
}

TYPED_TEST(Products, AreChainsOfFusedMultiplyAddsThenBiasThenTheOldValue) {
  each_instruction_set([&](const std::string& name) {
    if (!fuses(name)) return;
    for (const Size s : kSizes) {
      const Problem p(s, kDType<TypeParam>);
      Tensor y = p.y, expected = p.y;
      PackedMatrix<TypeParam> b;
      b.pack(p.b.view());
      product(p.x.view(), b, y.view(), {p.bias.view(), Into::kAdd});
      expected.fill([&](int64_t m, int64_t n, int64_t, int64_t) { return p.template chain<TypeParam>(m, n); });
      ASSERT_TRUE(same_bits(y.view(), expected.view())) << name << ' ' << s.m << 'x' << s.n << 'x' << s.k;
    }
  });
}

TYPED_TEST(Products, OfARowHaveTheSameBitsWhateverIsBesideIt) {
  const Problem p({131, 200, 77}, kDType<TypeParam>);
  each_instruction_set([&](const std::string& name) {
    PackedMatrix<TypeParam> b;
    b.pack(p.b.view());
    Tensor all = p.y;
    product(p.x.view(), b, all.view());
    for (const int64_t rows : {1, 2, 3, 5, 6, 64}) {
      Tensor some = p.y;
      for (int64_t first = 0; first < 131; first += rows) {
        const int64_t last = std::min<int64_t>(131, first + rows);
        product(slice(p.x.view(), 0, first, last), b, slice(some.view(), 0, first, last));
      }
      EXPECT_TRUE(same_bits(all.view(), some.view())) << name << ", " << rows << " rows at once";
    }
  });
}

TYPED_TEST(Products, TakeAMatrixOfAnyStridesAndRowsAnyDistanceApart) {
  each_instruction_set([&](const std::string& name) {
    for (const Size s : {Size{5, 65, 129}, Size{66, 300, 31}}) {
      const Problem p(s, kDType<TypeParam>);
      Problem apart(s, kDType<TypeParam>, Placement::kGaps);
      PackedMatrix<TypeParam> b;
      b.pack(p.b.view());
      Tensor y = p.y;
      product(p.x.view(), b, y.view());
      for (const Placement placement : testing::kPlacements) {
        Tensor w(kDType<TypeParam>, {s.k, s.n}, placement);
        w.normal(2);
        b.pack(w.view());
        product(apart.x.view(), b, apart.y.view());
        EXPECT_TRUE(same_bits(y.view(), apart.y.view())) << name << ' ' << testing::name(placement);
      }
      Tensor w(kDType<TypeParam>, {s.n, s.k});
      w.fill([&](int64_t n, int64_t k, int64_t, int64_t) { return p.b.get(k, n); });
      b.pack(exchanged(std::as_const(w).view()));
      product(apart.x.view(), b, apart.y.view());
      EXPECT_TRUE(same_bits(y.view(), apart.y.view())) << name << " weights {out, in}";
    }
  });
}

TYPED_TEST(Products, TouchNothingOutsideTheirTensors) {
  each_instruction_set([&](const std::string&) {
    for (const Size s : kSizes) {
      for (const Guard guard : {Guard::kBehind, Guard::kBefore}) {
        const Problem p(s, kDType<TypeParam>);
        const GuardedTensor x(p.x, guard), w(p.b, guard), bias(p.bias, guard), y(p.y, guard);
        Tensor expected = p.y;
        PackedMatrix<TypeParam> b;
        b.pack(w.view());
        product(x.view(), b, y.view(), {bias.view(), Into::kWrite});
        product(p.x.view(), b, expected.view(), {p.bias.view(), Into::kWrite});
        EXPECT_TRUE(same_bits(y.view(), expected.view()));
      }
    }
  });
}

TYPED_TEST(Products, LeaveWhatLiesBetweenRowsAlone) {
  Problem p({7, 13, 5}, kDType<TypeParam>, Placement::kGaps);
  PackedMatrix<TypeParam> b;
  b.pack(p.b.view());
  const View<TypeParam> y = p.y.template as<TypeParam>();
  for (int64_t m = 0; m < 7; ++m) y.data[m * y.strides[0] + 13] = 42;
  product(p.x.view(), b, p.y.view());
  for (int64_t m = 0; m < 7; ++m) EXPECT_EQ(y.data[m * y.strides[0] + 13], 42);
}

TYPED_TEST(Products, HaveTheSameBitsForAnyNumberOfThreads) {
  for (const Size s : {Size{1, 2304, 768}, Size{200, 700, 300}, Size{3000, 40, 70}}) {
    const Problem p(s, kDType<TypeParam>);
    Tensor first;
    for (const int threads : {1, 2, 3, 8}) {
      ThreadPool pool(threads);
      const Call call{&pool, nullptr, {}};
      PackedMatrix<TypeParam> b;
      b.pack(p.b.view(), call);
      Tensor y = p.y;
      product(p.x.view(), b, y.view(), {p.bias.view()}, call);
      if (!first) first = y;
      EXPECT_TRUE(same_bits(first.view(), y.view())) << threads << " threads";
    }
  }
}

TYPED_TEST(Products, OverNothingAreTheBias) {
  const Problem p({3, 5, 0}, kDType<TypeParam>);
  PackedMatrix<TypeParam> b;
  b.pack(p.b.view());
  Tensor y = p.y;
  product(p.x.view(), b, y.view(), {p.bias.view()});
  y.each([&](int64_t m, int64_t n, int64_t, int64_t) { EXPECT_EQ(y.get(m, n), p.bias.get(n)); });
  product(Tensor(kDType<TypeParam>, {0, 0}).view(), b, Tensor(kDType<TypeParam>, {0, 5}).view());
}

TEST(NarrowProducts, AreProductsOfWidenedNumbersRoundedOnce) {
  each_instruction_set([&](const std::string& name) {
    for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
      for (const Size s : {Size{1, 129, 65}, Size{67, 70, 300}}) {
        const Problem narrow(s, type, Placement::kGaps);
        const auto widened = [](const Tensor& t) {
          Tensor wide(DType::kFloat32,
                      std::vector<int64_t>(t.layout().shape.begin(), t.layout().shape.begin() + t.layout().rank));
          wide.fill([&](int64_t i, int64_t j, int64_t, int64_t) { return t.get(i, j); });
          return wide;
        };
        Tensor expected = widened(narrow.y), y = narrow.y, rounded = narrow.y;
        PackedMatrix<float> b, exchanged_b;
        b.pack(widened(narrow.b).view());
        product(widened(narrow.x).view(), b, expected.view(), {widened(narrow.bias).view(), Into::kAdd});
        rounded.fill([&](int64_t m, int64_t n, int64_t, int64_t) { return expected.get(m, n); });
        b.pack(narrow.b.view());
        product(narrow.x.view(), b, y.view(), {narrow.bias.view(), Into::kAdd});
        EXPECT_TRUE(same_bits(rounded.view(), y.view())) << name << ' ' << qkv::name(type);

        Tensor w(type, {s.n, s.k});
        w.fill([&](int64_t n, int64_t k, int64_t, int64_t) { return narrow.b.get(k, n); });
        exchanged_b.pack(exchanged(std::as_const(w).view()));
        y = narrow.y;
        product(narrow.x.view(), exchanged_b, y.view(), {narrow.bias.view(), Into::kAdd});
        EXPECT_TRUE(same_bits(rounded.view(), y.view())) << name << ' ' << qkv::name(type) << " {out, in}";
      }
    }
  });
}

TEST(PackedMatrix, IsPackedAgainWithoutAllocation) {
  const Tensor w = Tensor(DType::kFloat32, {64, 48}).normal(1);
  PackedMatrix<float> b;
  b.pack(w.view());
  const float* data = b.data();
  b.pack(exchanged(w.view()));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.rows(), 48);
  EXPECT_EQ(b.columns(), 64);
}

TEST(ProductErrors, SayWhatWasExpected) {
  const Tensor w = Tensor(DType::kFloat32, {7, 9}).normal(1), x(DType::kFloat32, {3, 5}), good(DType::kFloat32, {3, 7});
  Tensor y(DType::kFloat32, {3, 9});
  PackedMatrix<float> b;
  b.pack(w.view());
  EXPECT_EQ(
      message_of<ShapeError>([&] { product(x.view(), b, y.view()); }),
      "product: x has shape {3, 5}, expected {rows, 7} for a packed matrix {7, 9}; pass its rows, or the matrix for {3, 5}");
  EXPECT_EQ(message_of<ShapeError>([&] {
              product(good.view(), b, Tensor(DType::kFloat32, {9, 3}).view());
            }),
            "product: y has shape {9, 3}, expected {3, 9}; reshape it, or pass the tensor that belongs here");
  EXPECT_EQ(message_of<ShapeError>([&] {
              product(exchanged(Tensor(DType::kFloat32, {7, 3}).view()), b, y.view());
            }),
            "product: x has a step of 3 between columns, expected 1; copy it into rows");
  EXPECT_EQ(message_of<DtypeError>([&] {
              product(Tensor(DType::kFloat64, {3, 7}).view(), b, y.view());
            }),
            "product: x has type float64, expected float32, float16 or bfloat16; convert it");
  EXPECT_EQ(message_of<ShapeError>([&] { product(good.view(), b, y.view(), {x.view()}); }),
            "product: bias has shape {3, 5}, expected {9}; reshape it, or pass the tensor that belongs here");
  EXPECT_EQ(message_of<DtypeError>([&] { PackedMatrix<double>().pack(w.view()); }),
            "PackedMatrix::pack: matrix has type float32, expected float64 as the rest; convert it");
  EXPECT_EQ(message_of<ShapeError>([&] {
              b.pack(View<const float>(nullptr, {2, 2}));
            }),
            "PackedMatrix::pack: matrix has shape {2, 2} but no data; pass a pointer");
}

TEST(ProductErrors, AStoppedCallThrows) {
  const Problem p({3, 9, 7}, DType::kFloat32);
  Tensor y = p.y;
  PackedMatrix<float> b;
  b.pack(p.b.view());
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW(product(p.x.view(), b, y.view(), {}, Call{nullptr, nullptr, stop.get_token()}), Cancelled);
}

}  // namespace
}  // namespace qkv::nn
