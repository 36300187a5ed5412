#include "reference/plain.h"

namespace qkv::reference {

RowAnswer plain(const Problem& p, DType type, int64_t b, int64_t h, int64_t i) {
  if (type == DType::kFloat64) return evaluate<double>(p, b, h, i);
  RowAnswer answer = evaluate<float>(p, b, h, i);
  for (double& x : answer.out) {
    if (type == DType::kFloat16) x = float(float16(float(x)));
    if (type == DType::kBFloat16) x = float(bfloat16(float(x)));
  }
  return answer;
}

}  // namespace qkv::reference
