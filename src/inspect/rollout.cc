#include <algorithm>
#include <vector>

#include "attention/check.h"
#include "core/elements.h"
#include "core/format.h"
#include "core/parallel.h"
#include "qkv/heads.h"

namespace qkv {
namespace {

void check_call(View<const void> layers, View<void> out) {
  const auto is_float = [](DType type) { return type == DType::kFloat32 || type == DType::kFloat64; };
  if (layers.rank != 3 || layers.shape[1] != layers.shape[2])
    shape_error("rollout: layers has shape {}, expected {{layers, length, length}}; fuse the heads first", layers);
  const int64_t length = layers.shape[1];
  if (out.rank != 2 || out.shape[0] != length || out.shape[1] != length)
    shape_error("rollout: out has shape {}, expected {{{}, {}}} for layers of shape {}", out, length, length, layers);
  if (!is_float(layers.dtype))
    dtype_error("rollout: layers has type {}, expected float32 or float64; convert it", layers.dtype);
  if (!is_float(out.dtype)) dtype_error("rollout: out has type {}, expected float32 or float64", out.dtype);
  check::data("rollout", "layers", layers);
  check::data("rollout", "out", out);
}

/// Row i of (A + I) / 2, divided by its own sum.
void read_row(View<const void> layers, int64_t layer, int64_t i, std::vector<double>& row) {
  const auto length = int64_t(row.size());
  load(layers, layers.offset(layer, i), layers.strides[2], length, row.data());
  row[size_t(i)] += 1;
  double sum = 0;
  for (const double a : row) sum += a;
  for (double& a : row) a /= sum;  // the factor 1/2 cancels
}

/// to = a_layer from; both {length, length}. Rows are work items.
void multiply(View<const void> layers, int64_t layer, const std::vector<double>& from, std::vector<double>& to,
              const Call& call) {
  const auto length = size_t(layers.shape[1]);
  parallel(call, int64_t(length), [&](int64_t i) {
    std::vector<double> row(length);
    read_row(layers, layer, i, row);
    double* sums = to.data() + size_t(i) * length;
    std::fill_n(sums, length, 0.0);
    for (size_t k = 0; k < length; ++k)
      for (size_t j = 0; j < length; ++j) sums[j] += row[k] * from[k * length + j];
  });
}

}  // namespace

void rollout(View<const void> layers, View<void> out, const Call& call) {
  check_call(layers, out);
  const auto length = size_t(layers.shape[1]);
  std::vector<double> product(length * length), next(length * length);
  for (size_t i = 0; i < length; ++i) product[i * length + i] = 1;
  for (int64_t layer = 0; layer < layers.shape[0]; ++layer) {
    multiply(layers, layer, product, next, call);
    product.swap(next);
  }
  for (size_t i = 0; i < length; ++i)
    store(out, out.offset(int64_t(i)), out.strides[1], int64_t(length), product.data() + i * length);
}

}  // namespace qkv
