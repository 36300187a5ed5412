// The plain evaluation: what a careful person without vectors gets in the storage's own arithmetic. It sets the measure of
// the error bound: qkv may be at most twice as far from the oracle.
#pragma once
#include "reference/oracle.h"

namespace qkv::reference {

/// Scalar loops in index order in float (in double where `type` is float64), `out` rounded once to `type`, everything else
/// left in float or double. `type` is the query's.
RowAnswer plain(const Problem&, DType type, int64_t b, int64_t h, int64_t i);

}  // namespace qkv::reference
