// A tensor that owns its memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "qkv/view.h"

namespace qkv {

/// A tensor that owns its memory. Any rank; element [0, ..., 0] lies at the beginning, 64-byte aligned.
class QKV_EXPORT Array {
 public:
  Array() = default;  ///< no tensor: float32 {0}
  /// Zeros, contiguous, last axis fastest. Throws ShapeError for a negative size or one past 64 bits.
  Array(DType, std::vector<int64_t> shape);

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<int64_t>& strides() const {
    return strides_;
  }                      ///< in elements; Fortran order has the first axis fastest
  int64_t size() const;  ///< elements; 1 for rank 0
  size_t bytes() const { return bytes_; }
  const void* data() const { return data_.get(); }
  void* data() { return data_.get(); }

  /// A scalar (rank 0) is seen as {1}. Throws ShapeError above rank 4. Valid as long as this array lives, also when moved.
  View<const void> view() const;
  View<void> view();

  /// Memory that a reader has filled. `fortran`: the first axis is the fastest.
  struct Free {
    void operator()(std::byte*) const;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;
  static Array adopt(DType, std::vector<int64_t> shape, bool fortran, Memory, size_t bytes);

 private:
  Layout layout() const;
  DType dtype_ = DType::kFloat32;
  std::vector<int64_t> shape_{0}, strides_{1};
  Memory data_;
  size_t bytes_ = 0;
};

}  // namespace qkv
