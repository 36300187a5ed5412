// Score modifiers with one number a head: a slope, a cap, a scale.
#pragma once
#include <algorithm>
#include <type_traits>

#include "core/format.h"
#include "qkv/attention.h"

namespace qkv::policies {

inline constexpr int kMostRows = 64;  ///< of a tile, padding included

/// The loops of such a modifier over a tile. numbers, sums {rows, padded}
template <class T> struct HeadKernels {
  void (*forward)(const Tile<T>&, const T* numbers);
  /// The gradient by what forward() got becomes that by what it was given; null where they are the same.
  void (*turn)(const Tile<const T>& before, const Tile<T>& gradient, const T* numbers);
  /// sums[r]: the gradient by the number of row r, over these keys. Null where it is no tensor.
  void (*sum)(const Tile<const T>& before, const Tile<T>& gradient, KeyRange keys, const T* numbers, T* sums);
};

/// numbers[r] of row r, 0 in the padding.  numbers {kMostRows}
template <class T> void numbers_of_rows(const Parameter& of_heads, const Sites& t, T* numbers) {
  for (int r = 0; r < kMostRows; ++r) numbers[r] = r < t.rows ? of_heads.get<T>(t.head[r]) : T(0);
}

/// The pass of such a modifier. P has `template <class T> void fill(const Sites&, T* numbers) const` and
/// `template <class T> static const HeadKernels<T>& kernels()`.
template <class P> class HeadPass : public passes::Score {
 public:
  using Score::Score;
  void forward(const Tile<float>& t) const final { run(t); }
  void forward(const Tile<double>& t) const final { run(t); }
  void backward(const Tile<const float>& before, const Tile<float>& gradient,
                std::span<double* const> sums) const final {
    turn(before, gradient, sums);
  }
  void backward(const Tile<const double>& before, const Tile<double>& gradient,
                std::span<double* const> sums) const final {
    turn(before, gradient, sums);
  }

 private:
  const P& self() const { return static_cast<const P&>(*this); }
  template <class T> void run(const Tile<T>& t) const {
    alignas(64) T numbers[kMostRows];
    self().fill(t, numbers);
    P::template kernels<T>().forward(t, numbers);
  }
  template <class T>
  void turn(const Tile<const T>& before, const Tile<T>& gradient, std::span<double* const> sums) const {
    const HeadKernels<T>& kernels = P::template kernels<T>();
    const bool wants_sums = !sums.empty() && sums[0] != nullptr;
    if (!wants_sums && kernels.turn == nullptr) return;
    alignas(64) T numbers[kMostRows], of_rows[kMostRows];
    self().fill(gradient, numbers);
    for (int j = 0; wants_sums && j < gradient.keys; j += passes::kKeysOfSum<T>) {
      kernels.sum(before, gradient, {j, std::min(j + passes::kKeysOfSum<T>, gradient.keys)}, numbers, of_rows);
      for (int r = 0; r < gradient.rows; ++r) sums[0][gradient.head[r]] += double(of_rows[r]);
    }
    if (kernels.turn != nullptr) kernels.turn(before, gradient, numbers);
  }
};

/// A tensor among Inputs::parameters, which nobody has looked at yet: one number a head, each as `fits` wants it.
inline void expect_number_a_head(const Inputs& in, std::string_view name, const char* one, bool (*fits)(double),
                                 const char* expected) {
  const View<const void> v = find_tensor(in, name);
  if (v.dtype != DType::kFloat32 && v.dtype != DType::kFloat64)
    dtype_error("{}: the tensor has type {}, expected float32 or float64; convert it", name, qkv::name(v.dtype));
  if (v.rank != 1 || v.shape[0] != in.query.shape[1])
    shape_error("{}: the tensor has shape {}, expected one number a query head: {{{}}}", name, shape_text(v),
                in.query.shape[1]);
  for (int64_t h = 0; h < v.shape[0]; ++h) {
    const double x = v.dtype == DType::kFloat64 ? v.as<const double>()(h) : double(v.as<const float>()(h));
    if (!fits(x)) option_error("{}: the {} of head {} is {}, expected {}", name, one, h, x, expected);
  }
}

}  // namespace qkv::policies
