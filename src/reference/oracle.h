// The oracle: attention from its equation, one row at a time, at least in double. What everything else is compared with.
#pragma once
#include <cstdint>
#include <vector>

#include "reference/problem.h"

namespace qkv::reference {

/// All there is to know about one query. Columns of a hidden pair: weight 0, masked score -inf. Columns that do not exist:
/// every score -inf.
struct RowAnswer {
  std::vector<double> raw_scores, modified_scores, masked_scores, weights;  // {columns}
  std::vector<double> out;                                                  // {value_dim}
  double lse = 0;
  double entropy = 0, effective_keys = 0, max_weight = 0, mean_distance = 0, sink_share = 0;
  int max_index = -1, visible_keys = 0;
};

/// The attention of query i of head h of batch entry b, computed in Real: scalar loops in index order.
///   s[j] = modify(scale * sum_d q[d] k[j][d]),  w[j] = exp(s[j] - max) / sum,  out[d] = sum_j w[j] v[j][d]
/// Hidden pairs are left out of every sum. Instances: float, double, long double.
template <class Real> RowAnswer evaluate(const Problem&, int64_t b, int64_t h, int64_t i);

/// evaluate() in long double, where the machine has one: float64 is measured against it too.
RowAnswer oracle(const Problem&, int64_t b, int64_t h, int64_t i);

}  // namespace qkv::reference
