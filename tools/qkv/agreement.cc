#include "qkv/agreement.h"

#include <algorithm>
#include <cmath>

#include "qkv/numbers.h"

namespace qkv::cli {

namespace {

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t n = 0; n < a.size(); ++n) largest = std::max(largest, apart(a[n], b[n]));
  return largest;
}

double epsilon(DType type) {
  switch (type) {
    case DType::kFloat64: return 0x1p-52;
    case DType::kFloat16: return 0x1p-10;
    case DType::kBFloat16: return 0x1p-7;
    default: return 0x1p-23;
  }
}

}  // namespace

Agreement agree(const char* what, const char* function, const Compared& c) {
  double size = std::isfinite(c.size) ? c.size : 0;
  for (double x : c.exact) size = std::max(size, std::isfinite(x) ? std::abs(x) : 0);
  return {what, function, largest_difference(c.steps, c.library),
          2 * largest_difference(c.plain, c.exact) + 8 * epsilon(c.type) * size + largest_difference(c.steps, c.exact)};
}

}  // namespace qkv::cli
