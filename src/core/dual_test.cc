// Derivatives of Dual against central differences, function by function.
#include "qkv/dual.h"

#include <gtest/gtest.h>

#include <limits>

namespace qkv {
namespace {

using D = Dual<double, 3>;

D variable(double x, size_t slot) {
  D v(x);
  v.d[slot] = 1;
  return v;
}

/// f takes two numbers or two duals.
template <class F> void expect_derivatives(const char* name, F f, double x, double y) {
  const D got = f(variable(x, 0), variable(y, 1));
  const double h = 0x1p-20;
  EXPECT_DOUBLE_EQ(got.value, f(x, y)) << name;
  EXPECT_NEAR(got.d[0], (f(x + h, y) - f(x - h, y)) / (2 * h), 1e-7) << name << " by the first, at " << x << ", " << y;
  EXPECT_NEAR(got.d[1], (f(x, y + h) - f(x, y - h)) / (2 * h), 1e-7) << name << " by the second, at " << x << ", " << y;
  EXPECT_EQ(got.d[2], 0) << name;
}

TEST(Dual, HasTheDerivativesOfCentralDifferences) {
  using namespace std;  // as a user would have it: the functions of numbers beside those of duals
  for (const double x : {0.3, 1.7})
    for (const double y : {0.9, 2.0}) {
      expect_derivatives(
          "+", [](auto a, auto b) { return a + b + 2; }, x, y);
      expect_derivatives(
          "-", [](auto a, auto b) { return -a - (b - 1); }, x, y);
      expect_derivatives(
          "*", [](auto a, auto b) { return 3 * a * b; }, x, y);
      expect_derivatives(
          "/", [](auto a, auto b) { return 1 / a + a / b; }, x, y);
      expect_derivatives(
          "tanh", [](auto a, auto b) { return tanh(a) * b; }, x, y);
      expect_derivatives(
          "exp", [](auto a, auto b) { return exp(a * b); }, x, y);
      expect_derivatives(
          "expm1", [](auto a, auto b) { return expm1(a - b); }, x, y);
      expect_derivatives(
          "log", [](auto a, auto b) { return log(a) / b; }, x, y);
      expect_derivatives(
          "log1p", [](auto a, auto b) { return log1p(a * b); }, x, y);
      expect_derivatives(
          "sqrt", [](auto a, auto b) { return sqrt(a + b); }, x, y);
      expect_derivatives(
          "sin", [](auto a, auto b) { return sin(a * b); }, x, y);
      expect_derivatives(
          "cos", [](auto a, auto b) { return cos(a * b); }, x, y);
      expect_derivatives(
          "atan", [](auto a, auto b) { return atan(a - b); }, x, y);
      expect_derivatives(
          "erf", [](auto a, auto b) { return erf(a - b); }, x, y);
      expect_derivatives(
          "pow", [](auto a, auto b) { return pow(a, b); }, x, y);
      expect_derivatives(
          "pow of a number", [](auto a, auto b) { return pow(a - 3, 2) + pow(2, b); }, x, y);
      expect_derivatives(
          "abs", [](auto a, auto b) { return abs(a - b) + fabs(b - a); }, x, y);
      expect_derivatives(
          "min", [](auto a, auto b) { return min(a, b) * max(a, b) * max(a, b); }, x, y);
    }
}

TEST(Dual, AssignsInPlace) {
  expect_derivatives(
      "all of them",
      [](auto a, auto b) {
        a += b;
        a *= b;
        a -= 1;
        a /= b + 2;
        return a;
      },
      0.3, 0.9);
}

TEST(Dual, ComparesByItsValue) {
  const D x = variable(2, 0), y = variable(2, 1), more = variable(3, 0);
  EXPECT_TRUE(x == y && x <= y && x >= y && !(x < y) && !(x > y) && !(x != y));
  EXPECT_TRUE(x < more && more > x && x <= more && more >= x && x != more && x == 2 && 3 > x);
}

TEST(Dual, OfAPowerOfZeroIsWhatTheLimitIs) {
  EXPECT_EQ(pow(variable(0, 0), 1).d[0], 1);
  EXPECT_EQ(pow(variable(0, 0), 2).d[0], 0);
  EXPECT_EQ(pow(variable(0, 0), 0).d[0], 0);
  EXPECT_EQ(pow(variable(-2, 0), 3).d[0], 12);
  EXPECT_TRUE(std::isnan(pow(D(-2), variable(3, 1)).d[1]));
}

}  // namespace
}  // namespace qkv
