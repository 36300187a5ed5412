// Dual numbers: a value with its derivatives to the score (slot 0) and to the N - 1 parameters read.
#pragma once
#include <array>
#include <cmath>
#include <numbers>
#include <type_traits>

namespace qkv {

/// value + sum of d[n] * epsilon_n, with epsilon_n * epsilon_m = 0. A score modifier written for `auto score` takes it
/// too; that is where its derivative comes from.
template <class T, int N> struct Dual {
  T value{};
  std::array<T, N> d{};

  Dual() = default;
  template <class U>
  requires std::is_arithmetic_v<U> Dual(U v) : value(T(v)) {}

  /// f(this), where f has this value and this derivative here.
  Dual chain(T f, T df) const {
    Dual r;
    r.value = f;
    for (int n = 0; n < N; ++n) r.d[n] = df * d[n];
    return r;
  }
  friend Dual operator+(Dual a, const Dual& b) {
    a.value += b.value;
    for (int n = 0; n < N; ++n) a.d[n] += b.d[n];
    return a;
  }
  friend Dual operator-(Dual a, const Dual& b) {
    a.value -= b.value;
    for (int n = 0; n < N; ++n) a.d[n] -= b.d[n];
    return a;
  }
  friend Dual operator-(const Dual& a) { return a.chain(-a.value, T(-1)); }
  friend Dual operator*(const Dual& a, const Dual& b) {
    Dual r;
    r.value = a.value * b.value;
    for (int n = 0; n < N; ++n) r.d[n] = a.d[n] * b.value + a.value * b.d[n];
    return r;
  }
  friend Dual operator/(const Dual& a, const Dual& b) {
    Dual r;
    r.value = a.value / b.value;
    for (int n = 0; n < N; ++n) r.d[n] = (a.d[n] - r.value * b.d[n]) / b.value;
    return r;
  }
  Dual& operator+=(const Dual& b) { return *this = *this + b; }
  Dual& operator-=(const Dual& b) { return *this = *this - b; }
  Dual& operator*=(const Dual& b) { return *this = *this * b; }
  Dual& operator/=(const Dual& b) { return *this = *this / b; }

  friend bool operator<(const Dual& a, const Dual& b) { return a.value < b.value; }
  friend bool operator>(const Dual& a, const Dual& b) { return a.value > b.value; }
  friend bool operator<=(const Dual& a, const Dual& b) { return a.value <= b.value; }
  friend bool operator>=(const Dual& a, const Dual& b) { return a.value >= b.value; }
  friend bool operator==(const Dual& a, const Dual& b) { return a.value == b.value; }

  friend Dual tanh(const Dual& a) {
    const T t = std::tanh(a.value);
    return a.chain(t, 1 - t * t);
  }
  friend Dual exp(const Dual& a) {
    const T e = std::exp(a.value);
    return a.chain(e, e);
  }
  friend Dual log(const Dual& a) { return a.chain(std::log(a.value), 1 / a.value); }
  friend Dual sqrt(const Dual& a) {
    const T s = std::sqrt(a.value);
    return a.chain(s, T(0.5) / s);
  }
  friend Dual log1p(const Dual& a) { return a.chain(std::log1p(a.value), 1 / (1 + a.value)); }
  friend Dual expm1(const Dual& a) { return a.chain(std::expm1(a.value), std::exp(a.value)); }
  friend Dual sin(const Dual& a) { return a.chain(std::sin(a.value), std::cos(a.value)); }
  friend Dual cos(const Dual& a) { return a.chain(std::cos(a.value), -std::sin(a.value)); }
  friend Dual atan(const Dual& a) { return a.chain(std::atan(a.value), 1 / (1 + a.value * a.value)); }
  friend Dual erf(const Dual& a) {
    return a.chain(std::erf(a.value), T(2 * std::numbers::inv_sqrtpi) * std::exp(-a.value * a.value));
  }
  /// Of a negative base by the base alone: a power that varies there has no real derivative (NaN).
  friend Dual pow(const Dual& a, const Dual& b) {
    Dual r = a.chain(std::pow(a.value, b.value), b.value == 0 ? T(0) : b.value * std::pow(a.value, b.value - 1));
    for (int n = 0; n < N; ++n)
      if (b.d[n] != 0) r.d[n] += b.d[n] * (r.value == 0 ? T(0) : r.value * std::log(a.value));
    return r;
  }
  friend Dual abs(const Dual& a) { return a.value < 0 ? -a : a; }
  friend Dual fabs(const Dual& a) { return abs(a); }
  friend Dual min(const Dual& a, const Dual& b) { return b < a ? b : a; }
  friend Dual max(const Dual& a, const Dual& b) { return a < b ? b : a; }
};

}  // namespace qkv
