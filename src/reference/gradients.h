// The gradients of attention from their equations, one pair after the other. What backward() is compared with.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/oracle.h"

namespace qkv::reference {

/// The gradients of a loss by out and lse, element by element.
struct LossGradients {
  std::function<double(int64_t b, int64_t h, int64_t i, int64_t e)> dout;
  std::function<double(int64_t b, int64_t h, int64_t i)> dlse;
  /// `out` as it was stored; absent: as it is computed.
  std::function<double(int64_t b, int64_t h, int64_t i, int64_t e)> out{};
  /// `lse` as it was stored: weights are exp(score - lse); absent: as they are computed.
  std::function<double(int64_t b, int64_t h, int64_t i)> lse{};
  /// Where they are not 0; absent: anywhere. Other rows are passed over.
  std::function<bool(int64_t b, int64_t h, int64_t i)> rows{};
};

/// Rows of one size, {batch, heads, length, width}; of packed batches length is the longest.
struct RowGrid {
  int64_t heads = 0, length = 0, width = 0;
  std::vector<double> numbers;
  double& operator()(int64_t b, int64_t h, int64_t i, int64_t e) {
    return numbers[size_t(((b * heads + h) * length + i) * width + e)];
  }
  double operator()(int64_t b, int64_t h, int64_t i, int64_t e) const {
    return const_cast<RowGrid&>(*this)(b, h, i, e);
  }
};

struct GradientAnswer {
  RowGrid dquery, dkey, dvalue;
  std::map<std::string, std::vector<double>, std::less<>> by_tensor;  ///< "bias", "sinks", ...: elements in C order
  double largest_score = 0;                                           ///< max |modified score| of what is seen
};

/// With w the weights, computed in Real, sums in index order:
///   ds[j] = w[j] (dout . v[j] - dout . out + dlse), back through the modifiers, last to first
///   dq = scale sum_j ds[j] k[j],   dk[j] = scale sum_i ds[i][j] q[i],   dv[j] = sum_i w[i][j] dout[i]
/// Hidden pairs are left out. Instances: float, double, long double.
template <class Real> GradientAnswer gradients(const Problem&, const Inputs&, const LossGradients&);

}  // namespace qkv::reference
