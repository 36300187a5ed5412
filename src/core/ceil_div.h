// Division that rounds up.
#pragma once
#include <cstdint>

namespace qkv {

/// How many parts of b hold a; a >= 0, b > 0.
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace qkv
