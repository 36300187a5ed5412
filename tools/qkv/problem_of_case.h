// Problems of the command from the cases of the library's tests.
#pragma once
#include "qkv/part.h"
#include "qkv/views.h"
#include "tests/support/options.h"

namespace qkv::cli {

/// Borrows the example's tensors.
inline Problem problem_of(const testing::Example& e) {
  const testing::Case& c = e.shape;
  Problem p;
  p.attention = e.attention;
  p.inputs = e.inputs();
  p.packed = c.packed;
  p.sizes = {c.batch, c.query_heads(), c.key_heads, c.queries, c.keys, c.head_dim, c.value_dim};
  return p;
}

/// The row of query i in {B, H, L, n} or packed {T, H, n}, as {1, 1, 1, n}; n is 1 where `x` has no such axis.
inline View<const void> row_of(const Problem& p, View<const void> x, int64_t b, int64_t h, int64_t i) {
  const int64_t start = p.packed ? p.inputs.cumulative_query_lengths(b) : 0;
  const int64_t at = p.packed ? x.offset(start + i, h) : x.offset(b, h, i);
  const auto last = static_cast<size_t>(p.packed ? 2 : 3);
  const bool wide = x.rank == static_cast<int>(last) + 1;
  Layout layout;
  layout.rank = 4;
  layout.shape = {1, 1, 1, wide ? x.shape[last] : 1};
  layout.strides = {0, 0, 0, wide ? x.strides[last] : 0};
  return {static_cast<const char*>(x.data) + at * static_cast<int64_t>(size_of(x.dtype)), x.dtype, layout};
}

/// A case of every kind, small: each option with each element type.
inline std::vector<testing::Case> small_cases() {
  std::vector<testing::Case> cases;
  unsigned seed = 0;
  for (const testing::Option& option : testing::options()) {
    for (DType type : testing::kFloatTypes) {
      testing::Case c;
      c.dtype = type;
      c.batch = 2, c.key_heads = 2, c.group = 2, c.queries = 11, c.keys = 13, c.head_dim = 5, c.value_dim = 3;
      c.seed = ++seed;
      option.set(c);
      if (c.dropout == 0) cases.push_back(c);  // commands do not train
    }
  }
  return cases;
}

}  // namespace qkv::cli
