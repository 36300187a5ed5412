#include <cstring>
#include <new>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "io/bytes.h"
#include "qkv/array.h"
#include "qkv/error.h"

namespace qkv {

namespace {

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, bool fortran) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t n = 0; n < shape.size(); ++n) {
    const size_t axis = fortran ? n : shape.size() - 1 - n;
    strides[axis] = step;
    step *= shape[axis] > 0 ? shape[axis] : 1;  // of empty tensors no stride is ever used; keep them small
  }
  return strides;
}

}  // namespace

void Array::Free::operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{io::kAlignment}); }

Array::Array(DType dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
  const auto bytes = io::checked_bytes(shape_, size_of(dtype));
  if (!bytes)
    throw ShapeError(
        fmt::format("Array: sizes must be at least 0 and fit in 64 bits, got {{{}}}", fmt::join(shape_, ", ")));
  strides_ = strides_of(shape_, false);
  bytes_ = *bytes;
  data_ = io::allocate(bytes_);
  std::memset(data_.get(), 0, bytes_);
}

Array Array::adopt(DType dtype, std::vector<int64_t> shape, bool fortran, Memory memory, size_t bytes) {
  Array array;
  array.dtype_ = dtype;
  array.strides_ = strides_of(shape, fortran);
  array.shape_ = std::move(shape);
  array.data_ = std::move(memory);
  array.bytes_ = bytes;
  return array;
}

int64_t Array::size() const {
  int64_t product = 1;
  for (int64_t n : shape_) product *= n;
  return product;
}

Layout Array::layout() const {
  static constexpr int64_t kScalar[] = {1};
  if (shape_.empty()) return Layout(std::span<const int64_t>(kScalar));
  if (shape_.size() > size_t{kMaxRank}) {
    throw ShapeError(
        fmt::format("Array::view: a view has at most {} axes, this array has {}: {{{}}}; reshape it before saving",
                    kMaxRank, shape_.size(), fmt::join(shape_, ", ")));
  }
  return Layout(std::span<const int64_t>(shape_), std::span<const int64_t>(strides_));
}

View<const void> Array::view() const { return {data_.get(), dtype_, layout()}; }
View<void> Array::view() { return {data_.get(), dtype_, layout()}; }

}  // namespace qkv
