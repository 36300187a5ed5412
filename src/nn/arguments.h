// Checks that functions around layers share. `function` and `name` begin the message.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "core/format.h"

namespace qkv::arguments {

/// There is a tensor, its sizes are no less than 0, and memory stands behind it, aligned to its elements.
inline void tensor(const char* function, const char* name, View<const void> v) {
  if (!v) option_error("{}: {} is missing; pass a view", function, name);
  for (int a = 0; a < v.rank; ++a)
    if (v.shape[a] < 0)
      shape_error("{}: {} has shape {}, expected sizes of 0 and more; look for a subtraction that went below 0",
                  function, name, v);
  if (v.size() == 0) return;
  if (!v.data) option_error("{}: {} has shape {} but its data is null; pass a pointer", function, name, v);
  if (reinterpret_cast<uintptr_t>(v.data) % size_of(v.dtype) != 0)
    option_error("{}: {} lies at an address that is not a multiple of {}, the size of {}; copy it", function, name,
                 size_of(v.dtype), v.dtype);
}

inline void floating(const char* function, const char* name, View<const void> v) {
  tensor(function, name, v);
  if (!is_floating(v.dtype))
    dtype_error("{}: {} has type {}, expected float32, float64, float16 or bfloat16; convert it", function, name,
                v.dtype);
}

inline void shape(const char* function, const char* name, const Layout& v, std::initializer_list<int64_t> expected) {
  const Layout wanted(std::span(expected.begin(), expected.size()));
  if (v.rank != wanted.rank || v.shape != wanted.shape)
    shape_error("{}: {} has shape {}, expected {}; allocate or slice it so", function, name, v, wanted);
}

/// An output: the same shape and type as `like`.
inline void same(const char* function, const char* name, View<const void> v, const char* like_name,
                 View<const void> like) {
  tensor(function, name, v);
  if (v.rank != like.rank || v.shape != like.shape)
    shape_error("{}: {} has shape {} but {} has {}; they must agree", function, name, v, like_name, like);
  if (v.dtype != like.dtype)
    dtype_error("{}: {} has type {} but {} has {}; they must agree", function, name, v.dtype, like_name, like.dtype);
}

}  // namespace qkv::arguments
