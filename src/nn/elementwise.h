// Sums, products with a number, and dropout, number by number.
#pragma once
#include <cstdint>

#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv::nn {

/// All tensors here are {rows, columns} with contiguous columns, of float32, float64, float16 or bfloat16, also mixed, float64 with
/// float64 alone; outputs may lie on inputs. Throws ShapeError, DtypeError, OptionError.

/// out = x + y: a residual connection. Its backward is dx = dy = dout, or add(dx, dout, dx).
void add(View<const void> x, View<const void> y, View<void> out, const Call& = {});

/// out = x factor.
void scale(View<const void> x, double factor, View<void> out, const Call& = {});

/// Which numbers dropout keeps is a function of these and of where a number stands, row by row from `first_row` on, so that it can
/// be drawn again anywhere, in parts, by any number of threads (qkv/dropout.h has the generator). Layers that share a seed need
/// different `layer`s; attention's own draws never meet these.
struct DropoutOptions {
  double probability = 0.1;  ///< of being dropped, 0 to 1
  uint64_t seed = 0;
  int32_t layer = 0;      ///< 0 or more
  int64_t first_row = 0;  ///< the number of row 0 in the whole
};

/// y = x / (1 - probability) where it is kept, +0 elsewhere, also where x is NaN. Srivastava et al. 2014.
/// Backward is the same function of dy with the same options: it draws the same bits again and keeps nothing.
void dropout(View<const void> x, View<void> y, const DropoutOptions&, const Call& = {});

}  // namespace qkv::nn
