// Division that rounds up.
#pragma once
#include <cstdint>

namespace qkv {

/// How many parts of b hold a; a >= 0, b > 0.
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/// The least multiple of b that is not below a.
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace qkv
