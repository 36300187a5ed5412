// The last product of models, and the loss by it.
#pragma once
#include "qkv/operations.h"

namespace qkv::nn {

/// The mean cross-entropy of the targets by logits = x W^T.   x {B, L, width}, head {vocabulary, width}
inline Variable prediction_loss(Tape& tape, const Variable& x, const Rows& head, View<const int32_t> targets,
                                const TargetOptions& options) {
  constexpr int64_t kFewClasses = 1024;  // logits that are kept cost less than computing them twice
  if (head.of->value.shape()[0] <= kFewClasses) return cross_entropy(tape, linear(tape, x, head), targets, options);
  return linear_cross_entropy(tape, x, head, {}, targets, options);
}

/// A matrix of zeros, where it is wanted.
inline std::optional<Parameter> matrix_if(bool is_wanted, DType type, int64_t rows, int64_t columns) {
  if (!is_wanted) return std::nullopt;
  return std::optional<Parameter>(std::in_place, type, std::vector{rows, columns});
}

}  // namespace qkv::nn
