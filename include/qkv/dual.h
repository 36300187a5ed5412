// Dual numbers: a value with its derivatives to the score (slot 0) and to the N - 1 parameters read.
#pragma once
#include <array>
#include <cmath>
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
  friend bool operator<(const Dual& a, const Dual& b) { return a.value < b.value; }
  friend bool operator>(const Dual& a, const Dual& b) { return a.value > b.value; }

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
  friend Dual abs(const Dual& a) { return a.value < 0 ? -a : a; }
};

}  // namespace qkv
