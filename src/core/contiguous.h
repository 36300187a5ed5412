// Whether a tensor's elements lie side by side.
#pragma once
#include "qkv/view.h"

namespace qkv {

/// In C order, without gaps: the last axis fastest. Strides of axes of size 1 do not matter.
inline bool is_contiguous(const Layout& x) {
  int64_t step = 1;
  for (int axis = x.rank; axis-- > 0; step *= x.shape[size_t(axis)])
    if (x.shape[size_t(axis)] != 1 && x.strides[size_t(axis)] != step) return false;
  return true;
}

}  // namespace qkv
