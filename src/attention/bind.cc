#include "attention/bind.h"

#include <algorithm>
#include <cmath>

#include "attention/check.h"
#include "core/format.h"

namespace qkv {

RowsOf rows_of(View<const void> v, bool packed, bool flat) {
  RowsOf r;
  r.data = static_cast<std::byte*>(const_cast<void*>(v.data));
  r.type = v.dtype;
  r.element = int64_t(size_of(v.dtype));
  r.batch = packed ? 0 : v.strides[0];
  r.head = v.strides[1];
  r.row = packed ? v.strides[0] : v.strides[2];
  r.column = flat ? 0 : packed ? v.strides[2] : v.strides[3];
  return r;
}

Bound::Bound(const Attention& a, const Inputs& in, CallArena& arena, const char* function, Values values)
    : attention(a), inputs(in) {
  check::names(function, a, in);
  const View<const void> value_view = check::shapes(function, in, values, *this);
  tiled = a.heads() == HeadMapping::kTiled;
  query = rows_of(in.query, packed, false);
  key = rows_of(in.key, packed, false);
  value = rows_of(value_view, packed, false);
  entries = check::entries(function, a, in, *this, arena);
  longest_query = packed ? 0 : in.query.shape[2];
  longest_key = packed ? 0 : in.key.shape[2];
  for (const Entry& e : entries) {
    longest_query = std::max<int64_t>(longest_query, e.queries);
    longest_key = std::max<int64_t>(longest_key, e.keys);
  }
  check::tensors(function, in, *this);
  scale = a.scale() ? *a.scale() : head_dim > 0 ? 1 / std::sqrt(double(head_dim)) : 1;
  sinks_given = a.has_sinks();
  sinks = in.sinks;
  zero_key = a.has_zero_key();
  dropout = check::dropout(function, a, in, *this);

  const size_t n_patterns = a.patterns().size(), n_scores = a.scores().size();
  auto* all = arena.array_of<const passes::Pattern*>(2 * n_patterns);
  auto** others = all + n_patterns;
  size_t n_general = 0;
  for (size_t i = 0; i < n_patterns; ++i) {
    all[i] = a.patterns()[i]->bind(in, arena);
    if (!all[i]->exact()) others[n_general++] = all[i];
    masks_read_head |= all[i]->about().reads_head;
  }
  auto* steps = arena.array_of<const passes::Score*>(2 * n_scores);
  size_t n_hiding = 0;
  for (size_t i = 0; i < n_scores; ++i) {
    const passes::Score& s = *a.scores()[i];
    steps[i] = s.bind(in, arena);
    if (!s.hides()) continue;
    steps[n_scores + n_hiding++] = steps[i];
    masks_read_head |= steps[i]->about().reads_head;
  }
  patterns = {all, n_patterns};
  general = {others, n_general};
  scores = {steps, n_scores};
  hiding = {steps + n_scores, n_hiding};
}

double Bound::sink(int head) const {
  const int64_t at = sinks.offset(head);
  return sinks.dtype == DType::kFloat64 ? static_cast<const double*>(sinks.data)[at]
                                        : double(static_cast<const float*>(sinks.data)[at]);
}

KeyRange Bound::range(int batch, int head, int row) const {
  const Entry& e = entries[size_t(batch)];
  const Row r{batch, head, row, e.offset + row, {0, e.keys}, e.key_start};
  KeyRange seen = r.present;
  for (const passes::Pattern* p : patterns) {
    const KeyRange k = p->keys(r);
    seen = {std::max(seen.first, k.first), std::min(seen.last, k.last)};
  }
  return seen.empty() ? KeyRange{0, 0} : seen;
}

bool Bound::sees(Site at) const {
  if (at.column >= entries[size_t(at.batch)].keys) return false;
  for (const passes::Pattern* p : patterns)
    if (!p->sees(at)) return false;
  // One pair as a tile of one: the lanes are padded to 8 by repeating it.
  int32_t rows[3][8], keys[2][8];
  for (int i = 0; i < 8; ++i) {
    rows[0][i] = at.head, rows[1][i] = at.row, rows[2][i] = at.query;
    keys[0][i] = at.column, keys[1][i] = at.key;
  }
  const Sites one{1, 1, 1, 8, at.batch, rows[0], rows[1], rows[2], keys[0], keys[1]};
  for (const passes::Score* s : hiding) {
    uint8_t visible[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    s->hide(one, visible);
    if (!visible[0]) return false;
  }
  return true;
}

RowsOf check_output(const Bound& b, View<const void> v, const char* function, const char* name, DType type,
                    int64_t last, const char* advice) {
  if (!v) return {};
  check::data(function, name, v);
  if (v.dtype != type) dtype_error("{}: {} has type {}, expected {}; {}", function, name, v.dtype, type, advice);
  const int64_t total = b.packed ? b.inputs.query.shape[0] : 0;
  Extents want{1, 1, 1, 1};
  int rank = 0;
  if (b.packed) {
    want[rank++] = total;
    want[rank++] = b.query_heads;
  } else {
    want[rank++] = b.batch();
    want[rank++] = b.query_heads;
    want[rank++] = b.longest_query;
  }
  if (last >= 0) want[rank++] = last;
  Layout expected{std::span<const int64_t>(want.data(), size_t(rank))};
  if (v.rank != rank || v.shape != expected.shape)
    shape_error("{}: {} has shape {}, expected {}; {}", function, name, v, expected, advice);
  return rows_of(v, b.packed, last < 0);
}

}  // namespace qkv
