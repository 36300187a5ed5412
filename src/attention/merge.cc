#include "qkv/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/check.h"
#include "core/ceil_div.h"
#include "core/elements.h"
#include "core/format.h"
#include "core/parallel.h"
#include "core/workspace.h"

namespace qkv {
namespace {

constexpr int64_t kRowsOfAnItem = 64;

/// What both directions are about, after the checks. Heads are axis 1, packed batches {total queries, Hq, Dv} too.
struct Merge {
  std::span<const Partial> parts;
  View<const void> sinks;
  Layout rows;    // {B, Hq, L}, of all that is like out without its last axis
  int64_t width;  // Dv
  bool in_double;

  int last_axis() const { return rows.rank; }
  Extents index(int64_t row) const {
    Extents at{};
    for (int a = rows.rank; a-- > 0; row /= rows.shape[a]) at[a] = row % rows.shape[a];
    return at;
  }
};

int64_t offset_at(const Layout& layout, const Extents& i) { return layout.offset(i[0], i[1], i[2], i[3]); }

/// The checks of one call; `whole` names what is like the parts' out.
struct Checks {
  const char *function, *whole;

  void sums(const std::string& name, View<const void> v, const Layout& expected) const {
    if (!v) option_error("{}: {} is missing; ask forward() for it and pass it on", function, name);
    if (v.dtype != DType::kFloat32 && v.dtype != DType::kFloat64)
      dtype_error("{}: {} has type {}, expected float32 or float64, as forward() gives it", function, name, v.dtype);
    if (v.rank != expected.rank || v.shape != expected.shape)
      shape_error("{}: {} has shape {}, expected {}, that of {} without its last axis", function, name, v, expected,
                  whole);
    check::data(function, name.c_str(), v);
  }
  void rows(const std::string& name, View<const void> v, const Layout& expected) const {
    if (!v) option_error("{}: {} is missing; pass a view", function, name);
    if (!is_floating(v.dtype))
      dtype_error("{}: {} has type {}, expected float32, float64, float16 or bfloat16; convert it", function, name,
                  v.dtype);
    if (v.rank != expected.rank || v.shape != expected.shape)
      shape_error("{}: {} has shape {}, expected {}, that of {}; all parts have the same queries", function, name, v,
                  expected, whole);
    check::data(function, name.c_str(), v);
  }
  void of_heads(const char* name, View<const void> v, int64_t heads) const {
    if (!v) return;
    if (v.dtype != DType::kFloat32 && v.dtype != DType::kFloat64)
      dtype_error("{}: {} has type {}, expected float32 or float64; convert it", function, name, v.dtype);
    if (v.rank != 1 || v.shape[0] != heads)
      shape_error("{}: {} has shape {}, expected one number a query head: {{{}}}", function, name, v, heads);
    check::data(function, name, v);
  }
  /// out and lse: those of the whole, or the gradients by them.
  Merge call(std::span<const Partial> parts, View<const void> sinks, View<const void> out, const char* lse_name,
             View<const void> lse) const {
    if (!out) option_error("{}: {} is missing; pass a view", function, whole);
    if (out.rank < 3)
      shape_error(
          "{}: {} has shape {}, expected {{batch, heads, queries, size}}, or {{queries, heads, size}} of packed batches",
          function, whole, out);
    rows(whole, out, out);
    const Layout without_last(std::span(out.shape.data(), size_t(out.rank - 1)));
    if (lse) sums(lse_name, lse, without_last);
    bool in_double = out.dtype == DType::kFloat64;
    for (size_t n = 0; n < parts.size(); ++n) {
      rows(fmt::format("parts[{}].out", n), parts[n].out, out);
      sums(fmt::format("parts[{}].lse", n), parts[n].lse, without_last);
      in_double |= parts[n].out.dtype == DType::kFloat64;
    }
    of_heads("sinks", sinks, out.shape[1]);
    return {parts, sinks, without_last, out.shape[out.rank - 1], in_double};
  }
};

template <class T> constexpr T kNone = -std::numeric_limits<T>::infinity();

template <class T> T number_at(View<const void> v, int64_t at) {
  T value;
  load(v, at, 1, 1, &value);
  return value;
}

template <class T> T lse_of(const Partial& p, const Extents& at) { return number_at<T>(p.lse, offset_at(p.lse, at)); }

/// The sink of a row's head; -inf, which counts for nothing, without sinks.
template <class T> T sink_of(const Merge& m, const Extents& at) {
  return m.sinks ? number_at<T>(m.sinks, at[1] * m.sinks.strides[0]) : kNone<T>;
}

/// The largest log-sum-exp of a row, the sink's included; -inf where nobody saw anything.
template <class T> T largest(const Merge& m, const Extents& at) {
  T max = sink_of<T>(m, at);
  for (const Partial& p : m.parts) {
    const T lse = lse_of<T>(p, at);
    if (!(lse <= max)) max = lse;  // a NaN gets into the sum, whatever is the maximum
  }
  return max;
}

template <class T> void load_row(const Merge& m, View<const void> from, const Extents& at, T* row) {
  load(from, offset_at(from, at), from.strides[m.last_axis()], m.width, row);
}
template <class T> void store_row(const Merge& m, View<void> to, const Extents& at, const T* row) {
  store(to, offset_at(to, at), to.strides[m.last_axis()], m.width, row);
}

/// f(row, its index, scratch {numbers}) for every row.
template <class T, class F>
void each_row(const Merge& m, const Call& call, Workspace::Impl& workspace, int64_t numbers, F f) {
  const int64_t rows = m.rows.size(), items = ceil_div(rows, kRowsOfAnItem);
  const Executor& executor = call.executor ? *call.executor : default_executor();
  const size_t bytes = size_t(numbers) * sizeof(T);
  workspace.prepare_leases(int(std::min<int64_t>(executor.concurrency(), items)), bytes);
  parallel(call, items, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace, bytes);
    for (int64_t row = item * kRowsOfAnItem; row < std::min(rows, (item + 1) * kRowsOfAnItem); ++row)
      f(row, m.index(row), static_cast<T*>(lease.data()));
  });
}

// ---- forward ----

/// sum {Dv}, part {Dv}: scratch.
template <class T>
void merge_row(const Merge& m, View<void> out, View<void> lse_out, const Extents& at, T* sum, T* part) {
  const T max = largest<T>(m, at);
  std::fill_n(sum, m.width, T(0));
  T total = 0;
  for (const Partial& p : m.parts) {
    const T lse = lse_of<T>(p, at);
    if (lse == kNone<T>) continue;  // what `out` holds there is not looked at
    const T weight = std::exp(lse - max);
    total += weight;
    load_row(m, p.out, at, part);
    for (int64_t e = 0; e < m.width; ++e) sum[e] += weight * part[e];
  }
  if (const T sink = sink_of<T>(m, at); sink != kNone<T>) total += std::exp(sink - max);
  if (total != 0) {
    for (int64_t e = 0; e < m.width; ++e) sum[e] /= total;
  }
  store_row(m, out, at, sum);
  const T merged = total == 0 ? kNone<T> : max + std::log(total);
  if (lse_out) store(lse_out, offset_at(lse_out, at), 1, 1, &merged);
}

template <class T> void merge(const Merge& m, View<void> out, View<void> lse, const Call& call) {
  WorkspaceOf workspace_of(call);
  each_row<T>(m, call, workspace_of.impl(), 2 * m.width,
              [&](int64_t, const Extents& at, T* scratch) { merge_row(m, out, lse, at, scratch, scratch + m.width); });
}

// ---- backward ----

struct MergeBackward : Merge {
  View<const void> dout, dlse;
  MergeGradients to;
};

/// Of one row. weight: exp(lse_n - max), dots: dout . out_n.
template <class T> struct RowScratch {
  T *dout, *row;     // {Dv}
  T *weight, *dots;  // {parts}

  static int64_t numbers(const Merge& m) { return 2 * (m.width + int64_t(m.parts.size())); }
  RowScratch(const Merge& m, T* scratch)
      : dout(scratch), row(dout + m.width), weight(row + m.width), dots(weight + m.parts.size()) {}
};

/// Returns d loss / d sink by this row.
template <class T> T turn_row(const MergeBackward& m, const Extents& at, RowScratch<T> s) {
  const T max = largest<T>(m, at), sink = sink_of<T>(m, at);
  load_row(m, m.dout, at, s.dout);
  T total = 0, sum_of_dots = 0;
  for (size_t n = 0; n < m.parts.size(); ++n) {
    const T lse = lse_of<T>(m.parts[n], at);
    s.weight[n] = s.dots[n] = 0;
    if (lse == kNone<T>) continue;
    load_row(m, m.parts[n].out, at, s.row);
    for (int64_t e = 0; e < m.width; ++e) s.dots[n] += s.dout[e] * s.row[e];
    s.weight[n] = std::exp(lse - max);
    total += s.weight[n];
    sum_of_dots += s.weight[n] * s.dots[n];
  }
  if (sink != kNone<T>) total += std::exp(sink - max);
  const T delta = sum_of_dots / total - (m.dlse ? number_at<T>(m.dlse, offset_at(m.dlse, at)) : T(0));
  for (size_t n = 0; n < m.to.parts.size(); ++n) {
    const auto& [dout, dlse] = m.to.parts[n];
    const bool seen = lse_of<T>(m.parts[n], at) != kNone<T>;
    const T w = s.weight[n] / total, by_lse = seen ? w * (s.dots[n] - delta) : T(0);
    if (dlse) store(dlse, offset_at(dlse, at), 1, 1, &by_lse);
    if (!dout) continue;
    for (int64_t e = 0; e < m.width; ++e) s.row[e] = seen ? w * s.dout[e] : T(0);
    store_row(m, dout, at, s.row);
  }
  return sink == kNone<T> ? T(0) : -std::exp(sink - max) / total * delta;
}

/// by_row {rows}, sums {Hq}: scratch.
template <class T> void write_sinks(const MergeBackward& m, const T* by_row, double* sums) {
  const View<void>& to = m.to.dsinks;
  std::fill_n(sums, to.shape[0], 0.0);
  for (int64_t row = 0; row < m.rows.size(); ++row) sums[m.index(row)[1]] += double(by_row[row]);
  store(to, 0, to.strides[0], to.shape[0], sums);
}

template <class T> void merge_backward(const MergeBackward& m, const Call& call) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  const int64_t rows = m.to.dsinks ? m.rows.size() : 0;
  Carver count;
  count.take<T>(rows), count.take<double>(m.rows.shape[1]);
  Carver shared(workspace.call.reserve(count.used()));
  T* by_row = shared.take<T>(rows);
  double* sums = shared.take<double>(m.rows.shape[1]);
  each_row<T>(m, call, workspace, RowScratch<T>::numbers(m), [&](int64_t row, const Extents& at, T* scratch) {
    const T by_sink = turn_row(m, at, RowScratch<T>(m, scratch));
    if (m.to.dsinks) by_row[row] = by_sink;
  });
  if (m.to.dsinks) write_sinks(m, by_row, sums);
}

void check_gradients(const Checks& checks, const Merge& m, View<const void> dout, const MergeGradients& to) {
  if (!to.parts.empty() && to.parts.size() != m.parts.size())
    shape_error("{}: there are gradients of {} parts, expected {}, one a part; leave views empty that are not wanted",
                checks.function, to.parts.size(), m.parts.size());
  for (size_t n = 0; n < to.parts.size(); ++n) {
    if (to.parts[n].dout) checks.rows(fmt::format("parts[{}].dout", n), to.parts[n].dout, dout);
    if (to.parts[n].dlse) checks.sums(fmt::format("parts[{}].dlse", n), to.parts[n].dlse, m.rows);
  }
  if (to.dsinks && !m.sinks) option_error("{}: dsinks is given, but there are no sinks; leave it out", checks.function);
  checks.of_heads("dsinks", to.dsinks, m.rows.shape[1]);
}

}  // namespace

void merge_partials(std::span<const Partial> parts, View<const void> sinks, View<void> out, View<void> lse,
                    const Call& call) {
  const Merge m = Checks{"merge_partials", "out"}.call(parts, sinks, out, "lse", lse);
  if (m.in_double) merge<double>(m, out, lse, call);
  else merge<float>(m, out, lse, call);
}

void merge_partials_backward(std::span<const Partial> parts, View<const void> sinks, View<const void> dout,
                             View<const void> dlse, const MergeGradients& to, const Call& call) {
  const Checks checks{"merge_partials_backward", "dout"};
  const MergeBackward m{checks.call(parts, sinks, dout, "dlse", dlse), dout, dlse, to};
  check_gradients(checks, m, dout, to);
  if (m.in_double) merge_backward<double>(m, call);
  else merge_backward<float>(m, call);
}

}  // namespace qkv
