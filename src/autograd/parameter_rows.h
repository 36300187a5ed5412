// Parameters, or some rows of them, as variables.
#pragma once
#include "qkv/operations.h"

namespace qkv::nn {

/// Absent where `rows` is of no parameter. Throws ShapeError, which begins with `function`, where the parameter has another rank
/// or no such rows.
Variable rows_of(Tape&, const char* function, const char* name, const Rows& rows, int rank);

}  // namespace qkv::nn
