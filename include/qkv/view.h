// A pointer, a shape and strides. Owns nothing.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "qkv/export.h"
#include "qkv/float16.h"

namespace qkv {

/// Element types that a tensor may have when it arrives. Attention computes with the four floating ones.
enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64
};

template <class T>
inline constexpr DType kDType = [] {
  static_assert(sizeof(T) == 0, "qkv: no tensor has this element type");
  return DType{};
}();
template <> inline constexpr DType kDType<float> = DType::kFloat32;
template <> inline constexpr DType kDType<double> = DType::kFloat64;
template <> inline constexpr DType kDType<float16> = DType::kFloat16;
template <> inline constexpr DType kDType<bfloat16> = DType::kBFloat16;
template <> inline constexpr DType kDType<bool> = DType::kBool;
template <> inline constexpr DType kDType<int8_t> = DType::kInt8;
template <> inline constexpr DType kDType<int16_t> = DType::kInt16;
template <> inline constexpr DType kDType<int32_t> = DType::kInt32;
template <> inline constexpr DType kDType<int64_t> = DType::kInt64;
template <> inline constexpr DType kDType<uint8_t> = DType::kUInt8;
template <> inline constexpr DType kDType<uint16_t> = DType::kUInt16;
template <> inline constexpr DType kDType<uint32_t> = DType::kUInt32;
template <> inline constexpr DType kDType<uint64_t> = DType::kUInt64;

QKV_EXPORT const char* name(DType);  ///< "float32", "bfloat16", ...
QKV_EXPORT size_t size_of(DType);    ///< bytes of one element
QKV_EXPORT bool is_floating(DType);  ///< the four types that attention computes with

inline constexpr int kMaxRank = 4;
using Extents = std::array<int64_t, kMaxRank>;  ///< of unused axes: size 1, stride 0

/// Shape and strides (in elements; 0 and negative allowed) of a tensor of rank 1 to 4. Rank 0: no tensor.
struct Layout {
  int rank = 0;
  Extents shape{1, 1, 1, 1}, strides{};

  Layout() = default;
  /// Contiguous, last axis fastest. Throws ShapeError for more than four sizes.
  QKV_EXPORT explicit Layout(std::span<const int64_t> sizes);
  /// As many steps as sizes, else ShapeError.
  QKV_EXPORT Layout(std::span<const int64_t> sizes, std::span<const int64_t> steps);
  int64_t size() const { return rank == 0 ? 0 : shape[0] * shape[1] * shape[2] * shape[3]; }
  /// Elements between the origin and this index; 64 bits throughout.
  int64_t offset(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
  }
  /// The same, where an axis of size 1 stands for any size.
  int64_t broadcast_offset(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    return (shape[0] == 1 ? 0 : a * strides[0]) + (shape[1] == 1 ? 0 : b * strides[1]) +
           (shape[2] == 1 ? 0 : c * strides[2]) + (shape[3] == 1 ? 0 : d * strides[3]);
  }
  /// The number of that element in C order.
  int64_t broadcast_index(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    const int64_t rows = (shape[0] == 1 ? 0 : a) * shape[1] + (shape[1] == 1 ? 0 : b);
    return (rows * shape[2] + (shape[2] == 1 ? 0 : c)) * shape[3] + (shape[3] == 1 ? 0 : d);
  }
};
QKV_EXPORT std::string shape_text(const Layout&);  ///< "{2, 8, 128, 64}"

/// A tensor that somebody else owns. View<void> knows its element type at run time, as void* is to T*.
template <class T> struct View : Layout {
  T* data = nullptr;

  View() = default;
  View(T* first, std::initializer_list<int64_t> sizes) : Layout(std::span(sizes.begin(), sizes.size())), data(first) {}
  View(T* first, std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> steps)
      : Layout(std::span(sizes.begin(), sizes.size()), std::span(steps.begin(), steps.size())), data(first) {}
  View(T* first, const Layout& layout) : Layout(layout), data(first) {}
  operator View<const T>() const requires(!std::is_const_v<T>) { return {data, *this}; }

  T& operator()(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const { return data[offset(a, b, c, d)]; }
  explicit operator bool() const { return rank != 0; }
};

namespace detail {
/// Both View<void> and View<const void>.
template <class Void> struct ErasedView : Layout {
  Void* data = nullptr;
  DType dtype = DType::kFloat32;

  ErasedView() = default;
  ErasedView(Void* first, DType type, const Layout& layout) : Layout(layout), data(first), dtype(type) {}
  template <class T>
  requires(std::is_convertible_v<T*, Void*> && !std::is_void_v<T>) ErasedView(View<T> v)
      : Layout(v), data(v.data), dtype(kDType<std::remove_const_t<T>>) {}

  /// The typed view. The caller has looked at `dtype`.
  template <class T> View<T> as() const { return {static_cast<T*>(data), *this}; }
  explicit operator bool() const { return rank != 0; }
};
}  // namespace detail

template <> struct View<const void> : detail::ErasedView<const void> { using ErasedView::ErasedView; };
template <> struct View<void> : detail::ErasedView<void> {
  using ErasedView::ErasedView;
  operator View<const void>() const { return {data, dtype, *this}; }
};

}  // namespace qkv
