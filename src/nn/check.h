// Checks that the drivers of this folder share. Each names the function and the argument in its message.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/format.h"
#include "qkv/view.h"

namespace qkv::nn::check {

/// What a call is named in messages, and the type that it computes with: float64 if x has it, else float32.
struct Caller {
  const char* function;
  DType arithmetic = DType::kFloat32;
};

/// There is data behind a view, aligned to its elements.
void data(const char* function, const char* name, const View<const void>&);
/// A tensor {rows, columns} of a floating type with contiguous columns. Returns the caller with the type of arithmetic.
Caller matrix(const char* function, const char* name, const View<const void>&);
/// The same, of this shape, and of a type that the arithmetic widens or rounds to: float64 goes with float64 alone.
void matrix(const Caller&, const char* name, const View<const void>&, int64_t rows, int64_t columns);
/// {size}, contiguous, of a type that goes with the arithmetic.
void vector(const Caller&, const char* name, const View<const void>&, int64_t size);
/// {size}, contiguous, of the type of arithmetic itself: what forward saves for backward.
void saved(const Caller&, const char* name, const View<const void>&, int64_t size);

}  // namespace qkv::nn::check
