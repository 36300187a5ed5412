// What a Variable refers to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "autograd/pool.h"
#include "qkv/autograd.h"

namespace qkv::nn::detail {

/// Numbers and their gradient. Both lie in the pool, or with whoever lent them.
struct Node {
  std::shared_ptr<Pool> pool;
  DType dtype = DType::kFloat32;
  int64_t size = 0;  ///< elements
  bool needs_gradient = false, has_gradient = false;
  Parameter* parameter = nullptr;  ///< whose numbers these are
  std::byte* numbers = nullptr;    ///< of value, or lent
  Pool::Block value, gradient;

  size_t bytes() const { return size_t(size) * size_of(dtype); }
  std::byte* gradient_data() const;
  bool has_some_gradient() const { return parameter ? parameter->is_reached : has_gradient; }
  /// Memory for the gradient, which is about to be written: zeros where `zero`.
  void begin_gradient(bool zero);
};

}  // namespace qkv::nn::detail
