#include "attention/gradient_targets.h"

#include <algorithm>
#include <cmath>

#include "attention/check.h"
#include "core/format.h"

namespace qkv {
namespace {

constexpr const char *kName = "backward", *kMakeIt = "make it so";

RowsOf required(const Bound& b, View<const void> v, const char* function, const char* name, DType type, int64_t last) {
  if (!v) option_error("{}: {} is missing; pass a view", function, name);
  return check_output(b, v, function, name, type, last, kMakeIt);
}

/// A gradient by query, key or value.
RowsOf like(const Bound& b, View<void> v, const char* name, View<const void> of, const char* of_name) {
  if (!v) return {};
  check::data(kName, name, v);
  if (v.dtype != of.dtype)
    dtype_error("{}: {} has type {}, expected {}, that of {}; allocate it so", kName, name, v.dtype, of.dtype, of_name);
  if (v.rank != of.rank || v.shape != of.shape)
    shape_error("{}: {} has shape {}, expected {}, that of {}; allocate it so", kName, name, v, of, of_name);
  return rows_of(v, b.packed, false);
}

View<void> like_parameter(const Bound& b, View<void> v, std::string_view name, View<const void> of) {
  check::data(kName, std::string(name).c_str(), v);
  const DType type = b.is_double() ? DType::kFloat64 : DType::kFloat32;
  if (v.dtype != type)
    dtype_error("{}: the gradient by {} has type {}, expected {}; allocate it so", kName, name, v.dtype, type);
  if (v.rank != of.rank || v.shape != of.shape)
    shape_error("{}: the gradient by {} has shape {}, expected {}, that of the tensor; allocate it so", kName, name, v,
                of);
  return v;
}

}  // namespace

Given::Given(const Bound& b, const Upstream& up, const char* function) {
  const DType sums = b.is_double() ? DType::kFloat64 : DType::kFloat32;
  out = required(b, up.out, function, "out", b.query.type, b.value_dim);
  dout = required(b, up.dout, function, "dout", b.query.type, b.value_dim);
  lse = check_output(b, up.lse, function, "lse", sums, -1, kMakeIt);
  dlse = check_output(b, up.dlse, function, "dlse", sums, -1, kMakeIt);
  row_max = check_output(b, up.row_max, function, "row_max", sums, -1, kMakeIt);
  row_sum = check_output(b, up.row_sum, function, "row_sum", sums, -1, kMakeIt);
  if (bool(up.row_max) != bool(up.row_sum))
    option_error("{}: {} is given without {}; they belong together", function, up.row_max ? "row_max" : "row_sum",
                 up.row_max ? "row_sum" : "row_max");
  if (!up.row_max && !up.lse)
    option_error("{}: row_max and row_sum are missing; ask forward() for them and pass them on, or lse alone",
                 function);
}

template <class T>
void Given::deltas(int batch, int head, int64_t row, BlockRows<T> x, BlockRows<T> dx, int n, int value_dim,
                   T* delta) const {
  kernels::backward_kernels<T>().dot_rows(x.first, x.stride, dx.first, dx.stride, n, value_dim, delta);
  for (int i = 0; i < n; ++i) {
    const T* numbers = x.row(i);
    if (std::isnan(delta[i]) && std::all_of(numbers, numbers + value_dim, [](T v) { return v == 0; })) delta[i] = 0;
    if (dlse) delta[i] -= *static_cast<const T*>(dlse.at(batch, head, row + i));
  }
}
template void Given::deltas(int, int, int64_t, BlockRows<float>, BlockRows<float>, int, int, float*) const;
template void Given::deltas(int, int, int64_t, BlockRows<double>, BlockRows<double>, int, int, double*) const;

GradientTargets::GradientTargets(const Bound& b, const Gradients& g, CallArena& arena) : add(g.add) {
  dquery = like(b, g.dquery, "dquery", b.inputs.query, "query");
  dkey = like(b, g.dkey, "dkey", b.inputs.key, "key");
  dvalue = like(b, g.dvalue, "dvalue", b.inputs.value, "value");
  if (g.dsinks) {
    if (!b.sinks_given) option_error("{}: dsinks is given, but the attention has no sinks; leave it out", kName);
    dsinks = like_parameter(b, g.dsinks, "sinks", b.sinks);
  }
  auto* found = arena.array_of<ParameterTarget>(2 + g.dparameters.size());
  size_t count = 0;
  const auto want = [&](std::string_view name, View<void> v) {
    if (!v) return;
    const auto& scores = b.attention.scores();
    size_t readers = 0;
    for (size_t step = 0; step < scores.size(); ++step) {
      const auto& tensors = scores[step]->about().tensors;
      const auto at = std::find(tensors.begin(), tensors.end(), name);
      if (at == tensors.end()) continue;
      if (readers++ > 0)
        option_error(
            "{}: a gradient by '{}' is asked for, but two steps of the attention read it ({}); give one a tensor of "
            "another name",
            kName, name, b.attention.text());
      const auto same = [&](const ParameterTarget& p) {
        return p.step == step && p.tensor == size_t(at - tensors.begin());
      };
      if (std::any_of(found, found + count, same))
        option_error("{}: the gradient by '{}' is asked for twice; leave one out", kName, name);
      if (b.scores[step]->adds_matrix() && std::any_of(found, found + count, [](const auto& p) { return p.is_matrix; }))
        option_error(
            "{}: gradients by two tensors that are added to the scores are asked for, '{}' is the second; ask for one at "
            "a time",
            kName, name);
      const View<void> view = like_parameter(b, v, name, find_tensor(b.inputs, name));
      found[count++] = {step, size_t(at - tensors.begin()), view, b.scores[step]->adds_matrix()};
    }
    if (readers == 0)
      option_error("{}: a gradient by '{}' is asked for, but no step of the attention reads it ({}); leave it out",
                   kName, name, b.attention.text());
  };
  want("bias", g.dbias);
  want("alibi_slopes", g.dalibi_slopes);
  for (const NamedGradient& p : g.dparameters) want(p.name, p.view);
  parameters = {found, count};
}

template <class T>
void put_rows(const kernels::RowKernels<T>& kernels, const RowsOf& to, int batch, int head, int64_t first, int n,
              int width, const T* rows, int64_t stride, bool add, T* scratch) {
  void* at = to.at(batch, head, first);
  if (add) {
    kernels.load(at, to.type, to.row, to.column, n, width, scratch, width);
    for (int r = 0; r < n; ++r)
      for (int e = 0; e < width; ++e) scratch[int64_t{r} * width + e] += rows[r * stride + e];
    rows = scratch;
    stride = width;
  }
  kernels.store(rows, stride, n, width, at, to.type, to.row, to.column);
}
template void put_rows<float>(const kernels::RowKernels<float>&, const RowsOf&, int, int, int64_t, int, int,
                              const float*, int64_t, bool, float*);
template void put_rows<double>(const kernels::RowKernels<double>&, const RowsOf&, int, int, int64_t, int, int,
                               const double*, int64_t, bool, double*);

}  // namespace qkv
