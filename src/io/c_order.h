// Tensors on their way into a file.
#pragma once
#include <cstddef>
#include <span>

#include "qkv/array.h"
#include "qkv/io.h"

namespace qkv::io {

/// The elements of a tensor in C order: where they lie, or a copy.
struct CopyInOrder {
  std::span<const std::byte> data;
  Array::Memory packed{};
};
CopyInOrder in_c_order(View<const void>);

/// Throws ArgumentError, which begins with `function`, for tensors that are absent, without a name, or of one name.
void check_names(const char* function, std::span<const NamedTensor> tensors);

}  // namespace qkv::io
