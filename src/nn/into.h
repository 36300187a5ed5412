// What becomes of the numbers that an output holds already.
#pragma once
#include <cstdint>

namespace qkv::nn {

enum class Into : uint8_t {
  kWrite,  ///< they are replaced, and not read
  kAdd     ///< the result is added to them
};

}  // namespace qkv::nn
