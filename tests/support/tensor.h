// A tensor that owns its memory, of any element type and any strides. Views come from methods and live as long as the owner.
#pragma once
#include <algorithm>
#include <concepts>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "qkv/adapt.h"
#include "qkv/view.h"

namespace qkv::testing {

/// How elements lie in memory.
enum class Placement {
  kContiguous,
  kHeadsInside,  // {B, L, H, D} in memory, seen as {B, H, L, D}
  kTransposed,   // the last two axes exchanged: steps of more than 1 along D
  kReversed,     // every axis from its end to its beginning: negative strides
  kGaps          // three elements between rows that belong to nobody
};
inline constexpr Placement kPlacements[] = {Placement::kContiguous, Placement::kHeadsInside, Placement::kTransposed,
                                            Placement::kReversed, Placement::kGaps};
inline const char* name(Placement p) {
  constexpr const char* kNames[] = {"contiguous", "heads inside", "transposed", "reversed", "gaps"};
  return kNames[int(p)];
}

/// What was never written holds 0xFF bytes: NaN in every floating type, -1 in signed ones. Element 0 is aligned for its
/// type and for nothing more.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType type, std::vector<int64_t> shape, Placement placement = Placement::kContiguous) : type_(type) {
    const int rank = int(shape.size());
    std::vector<int> memory_order(shape.size());
    for (int axis = 0; axis < rank; ++axis) memory_order[size_t(axis)] = axis;
    if (placement == Placement::kHeadsInside && rank == 4) std::swap(memory_order[1], memory_order[2]);
    if (placement == Placement::kTransposed && rank >= 2)
      std::swap(memory_order[shape.size() - 2], memory_order.back());
    layout_ = Layout(shape);
    int64_t step = 1;
    for (int n = rank; n-- > 0;) {
      const int axis = memory_order[size_t(n)];
      layout_.strides[size_t(axis)] = step;
      step *= shape[size_t(axis)];
      if (placement == Placement::kGaps && n == rank - 1) step += 3;
    }
    if (placement == Placement::kReversed) {
      for (int axis = 0; axis < rank; ++axis) {
        const int64_t stride = layout_.strides[size_t(axis)];
        origin_ += shape[size_t(axis)] > 0 ? stride * (shape[size_t(axis)] - 1) : 0;
        layout_.strides[size_t(axis)] = -stride;
      }
    }
    origin_ += 1;
    bytes_.assign(size_t(step + 2) * size_of(type), 0xFF);
  }

  DType type() const { return type_; }
  const Layout& layout() const { return layout_; }
  int64_t size() const { return layout_.size(); }
  explicit operator bool() const { return layout_.rank != 0; }

  View<void> view() {
    if (!*this) return {};
    return {bytes_.data() + size_t(origin_) * size_of(type_), type_, layout_};
  }
  View<const void> view() const { return const_cast<Tensor*>(this)->view(); }
  template <class T> View<T> as() { return *this ? view().as<T>() : View<T>{}; }
  template <class T> View<const T> as() const { return *this ? view().as<const T>() : View<const T>{}; }

  double get(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    Parameter tensor{"tensor"};
    tensor.view = view();
    return tensor.get<double>(a, b, c, d);
  }
  void set(double x, int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
    void* data = view().data;
    const int64_t at = layout_.offset(a, b, c, d);
    switch (type_) {
      case DType::kFloat32: static_cast<float*>(data)[at] = float(x); break;
      case DType::kFloat64: static_cast<double*>(data)[at] = x; break;
      case DType::kFloat16: static_cast<float16*>(data)[at] = float16(float(x)); break;
      case DType::kBFloat16: static_cast<bfloat16*>(data)[at] = bfloat16(float(x)); break;
      case DType::kBool:
      case DType::kUInt8: static_cast<uint8_t*>(data)[at] = uint8_t(x); break;
      case DType::kInt32: static_cast<int32_t*>(data)[at] = int32_t(x); break;
      case DType::kInt64: static_cast<int64_t*>(data)[at] = int64_t(x); break;
      default: throw std::logic_error("Tensor::set: no such element type in the tests");
    }
  }

  /// f(a, b, c, d) for every element, last axis fastest.
  template <class F> void each(F f) const {
    for (int64_t a = 0; a < layout_.shape[0]; ++a)
      for (int64_t b = 0; b < layout_.shape[1]; ++b)
        for (int64_t c = 0; c < layout_.shape[2]; ++c)
          for (int64_t d = 0; d < layout_.shape[3]; ++d) f(a, b, c, d);
  }
  /// Sets every element to f(a, b, c, d).
  template <class F>
  requires std::invocable<F, int64_t, int64_t, int64_t, int64_t> Tensor& fill(F f) {
    if (*this) each([&](int64_t a, int64_t b, int64_t c, int64_t d) { set(f(a, b, c, d), a, b, c, d); });
    return *this;
  }
  Tensor& fill(double x) {
    return fill([&](int64_t, int64_t, int64_t, int64_t) { return x; });
  }
  /// Normal numbers; the same for a seed whatever the type and the placement.
  Tensor& normal(uint64_t seed, double deviation = 1) {
    std::mt19937_64 bits(seed);
    std::normal_distribution<double> distribution(0, deviation);
    return fill([&](int64_t, int64_t, int64_t, int64_t) { return distribution(bits); });
  }
  /// 0 or 1, 1 with this probability.
  Tensor& coins(uint64_t seed, double probability) {
    std::mt19937_64 bits(seed);
    std::bernoulli_distribution distribution(probability);
    return fill([&](int64_t, int64_t, int64_t, int64_t) { return distribution(bits); });
  }
  Tensor& values(const std::vector<double>& numbers) {
    size_t n = 0;
    return fill([&](int64_t, int64_t, int64_t, int64_t) { return numbers.at(n++); });
  }
  Tensor& poison() {
    std::fill(bytes_.begin(), bytes_.end(), uint8_t{0xFF});
    return *this;
  }

 private:
  DType type_ = DType::kFloat32;
  Layout layout_;
  int64_t origin_ = 0;
  std::vector<uint8_t> bytes_;
};

inline Tensor tensor(DType type, std::vector<int64_t> shape, const std::vector<double>& numbers) {
  Tensor t(type, std::move(shape));
  t.values(numbers);
  return t;
}
inline Tensor int32s(const std::vector<double>& numbers) {
  return tensor(DType::kInt32, {int64_t(numbers.size())}, numbers);
}

/// Part of a view: indices [first, last) of an axis.
template <class V> V slice(V view, int axis, int64_t first, int64_t last) {
  const int64_t step = view.strides[size_t(axis)] * first;
  if constexpr (requires { view.dtype; }) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char, char>;
    view.data = static_cast<Byte*>(view.data) + step * int64_t(size_of(view.dtype));
  } else {
    view.data += step;
  }
  view.shape[size_t(axis)] = last - first;
  return view;
}

}  // namespace qkv::testing
