#include "qkv/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/check.h"
#include "core/elements.h"
#include "core/format.h"
#include "core/parallel.h"
#include "core/workspace.h"

namespace qkv {
namespace {

constexpr const char* kName = "merge_partials";
constexpr int64_t kRowsOfAnItem = 64;

/// What one call is about, after its checks. Heads are axis 1, packed batches {total queries, Hq, Dv} too.
struct Merge {
  std::span<const Partial> parts;
  View<const void> sinks;
  View<void> out, lse;
  int axes;             // of a row's index
  int64_t rows, width;  // of all heads and entries; Dv

  Extents index(int64_t row) const {
    Extents at{};
    for (int a = axes; a-- > 0; row /= out.shape[a]) at[a] = row % out.shape[a];
    return at;
  }
};

int64_t offset_at(const Layout& layout, const Extents& i) { return layout.offset(i[0], i[1], i[2], i[3]); }

void check_sums(const std::string& name, View<const void> lse, const Layout& expected) {
  if (!lse) option_error("{}: {} is missing; ask forward() for it and pass it on", kName, name);
  if (lse.dtype != DType::kFloat32 && lse.dtype != DType::kFloat64)
    dtype_error("{}: {} has type {}, expected float32 or float64, as forward() gives it", kName, name, lse.dtype);
  if (lse.rank != expected.rank || lse.shape != expected.shape)
    shape_error("{}: {} has shape {}, expected {}, that of out without its last axis", kName, name, lse, expected);
  check::data(kName, name.c_str(), lse);
}

void check_rows(const std::string& name, View<const void> out, const Layout& expected) {
  if (!out) option_error("{}: {} is missing; pass a view", kName, name);
  if (!is_floating(out.dtype))
    dtype_error("{}: {} has type {}, expected float32, float64, float16 or bfloat16; convert it", kName, name,
                out.dtype);
  if (out.rank != expected.rank || out.shape != expected.shape)
    shape_error("{}: {} has shape {}, expected {}, that of out; all parts have the same queries", kName, name, out,
                expected);
  check::data(kName, name.c_str(), out);
}

void check_sinks(View<const void> sinks, int64_t heads) {
  if (!sinks) return;
  if (sinks.dtype != DType::kFloat32 && sinks.dtype != DType::kFloat64)
    dtype_error("{}: sinks has type {}, expected float32 or float64; convert it", kName, sinks.dtype);
  if (sinks.rank != 1 || sinks.shape[0] != heads)
    shape_error("{}: sinks has shape {}, expected one number a query head: {{{}}}", kName, sinks, heads);
  check::data(kName, "sinks", sinks);
}

Merge check_call(std::span<const Partial> parts, View<const void> sinks, View<void> out, View<void> lse) {
  if (!out) option_error("{}: out is missing; pass a view", kName);
  if (out.rank < 3)
    shape_error(
        "{}: out has shape {}, expected {{batch, heads, queries, size}}, or {{queries, heads, size}} of packed batches",
        kName, out);
  check_rows("out", out, out);
  const int axes = out.rank - 1;
  const Layout rows(std::span(out.shape.data(), size_t(axes)));
  if (lse) check_sums("lse", lse, rows);
  for (size_t n = 0; n < parts.size(); ++n) {
    check_rows(fmt::format("parts[{}].out", n), parts[n].out, out);
    check_sums(fmt::format("parts[{}].lse", n), parts[n].lse, rows);
  }
  check_sinks(sinks, out.shape[1]);
  return {parts, sinks, out, lse, axes, rows.size(), out.shape[axes]};
}

template <class T> T number_at(View<const void> v, int64_t at) {
  T value;
  load(v, at, 1, 1, &value);
  return value;
}

/// The sink of a row's head; -inf, which counts for nothing, without sinks.
template <class T> T sink_of(const Merge& m, const Extents& at) {
  return m.sinks ? number_at<T>(m.sinks, at[1] * m.sinks.strides[0]) : -std::numeric_limits<T>::infinity();
}

/// The largest log-sum-exp of a row, the sink's included; -inf where nobody saw anything.
template <class T> T largest(const Merge& m, const Extents& at) {
  T max = sink_of<T>(m, at);
  for (const Partial& p : m.parts) {
    const T lse = number_at<T>(p.lse, offset_at(p.lse, at));
    if (!(lse <= max)) max = lse;  // a NaN gets into the sum, whatever is the maximum
  }
  return max;
}

/// sum {Dv}, part {Dv}: scratch.
template <class T> void merge_row(const Merge& m, const Extents& at, T* sum, T* part) {
  const T none = -std::numeric_limits<T>::infinity();
  const T max = largest<T>(m, at);
  std::fill_n(sum, m.width, T(0));
  T total = 0;
  for (const Partial& p : m.parts) {
    const T lse = number_at<T>(p.lse, offset_at(p.lse, at));
    if (lse == none) continue;  // what `out` holds there is not looked at
    const T weight = std::exp(lse - max);
    total += weight;
    load(p.out, offset_at(p.out, at), p.out.strides[m.axes], m.width, part);
    for (int64_t e = 0; e < m.width; ++e) sum[e] += weight * part[e];
  }
  if (const T sink = sink_of<T>(m, at); sink != none) total += std::exp(sink - max);
  if (total != 0) {
    for (int64_t e = 0; e < m.width; ++e) sum[e] /= total;
  }
  store(m.out, offset_at(m.out, at), m.out.strides[m.axes], m.width, sum);
  const T merged = total == 0 ? none : max + std::log(total);
  if (m.lse) store(m.lse, offset_at(m.lse, at), 1, 1, &merged);
}

template <class T> void merge(const Merge& m, const Call& call) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  parallel(call, (m.rows + kRowsOfAnItem - 1) / kRowsOfAnItem, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace, size_t(2 * m.width) * sizeof(T));
    T* scratch = static_cast<T*>(lease.data());
    for (int64_t row = item * kRowsOfAnItem; row < std::min(m.rows, (item + 1) * kRowsOfAnItem); ++row)
      merge_row(m, m.index(row), scratch, scratch + m.width);
  });
}

}  // namespace

void merge_partials(std::span<const Partial> parts, View<const void> sinks, View<void> out, View<void> lse,
                    const Call& call) {
  const Merge m = check_call(parts, sinks, out, lse);
  bool in_double = out.dtype == DType::kFloat64;
  for (const Partial& p : parts) in_double |= p.out.dtype == DType::kFloat64;
  if (in_double) merge<double>(m, call);
  else merge<float>(m, call);
}

}  // namespace qkv
