#include "nn/cache_rows.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "nn/arguments.h"

namespace qkv {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 48;

/// n elements that lie `step` apart, one behind the other.
template <class Word> void gather(const std::byte* from, int64_t step, int64_t n, std::byte* to) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * int64_t(sizeof(Word)), from + i * step, sizeof(Word));
}

/// In threads where it is much to copy. Never stopped half-way: a cache is changed, or it is not.
template <class F> void each_item(const Call& call, int64_t items, int64_t bytes, const F& f) {
  constexpr int64_t kWorthThreads = 1 << 18;
  if (bytes >= kWorthThreads) return parallel({.executor = call.executor}, items, f);
  for (int64_t item = 0; item < items; ++item) f(item);
}

}  // namespace

CacheRows::CacheRows(DType type, int64_t batch, int64_t heads, int64_t dim, int64_t capacity)
    : type_(type), batch_(batch), heads_(heads), dim_(dim), capacity_(capacity) {
  data_ = static_cast<std::byte*>(memory_.reserve(size_t(batch) * entry_bytes()));
}

std::byte* CacheRows::at(int64_t b, int64_t h, int64_t row) const {
  return data_ + size_t(b * heads_ + h) * head_bytes() + size_t(row) * row_bytes();
}

CacheRows CacheRows::resized(int64_t capacity, const std::vector<int32_t>& used) const {
  CacheRows larger(type_, batch_, heads_, dim_, capacity);
  if (row_bytes() > 0)
    for (int64_t b = 0; b < batch_; ++b)
      for (int64_t h = 0; h < heads_; ++h)
        if (used[size_t(b)] > 0) std::memcpy(larger.at(b, h, 0), at(b, h, 0), size_t(used[size_t(b)]) * row_bytes());
  return larger;
}

void CacheRows::write(View<const void> from, int64_t b, int64_t h, int64_t first, int64_t n, int64_t place) {
  const auto bytes = int64_t(size_of(type_)), step = from.strides[3] * bytes;
  if (n == 0 || row_bytes() == 0) return;
  const auto* src = static_cast<const std::byte*>(from.data) + from.offset(b, h, first) * bytes;
  const bool dense = from.strides[3] == 1 || dim_ == 1;
  if (dense && from.strides[2] == dim_) {
    std::memcpy(at(b, h, place), src, size_t(n) * row_bytes());
    return;
  }
  for (int64_t r = 0; r < n; ++r, src += from.strides[2] * bytes) {
    std::byte* const to = at(b, h, place + r);
    if (dense) std::memcpy(to, src, row_bytes());
    else if (bytes == 2) gather<uint16_t>(src, step, dim_, to);
    else if (bytes == 4) gather<uint32_t>(src, step, dim_, to);
    else gather<uint64_t>(src, step, dim_, to);
  }
}

void CacheRows::shift(int64_t b, int64_t first, int64_t n) {
  if (first == 0 || n == 0 || row_bytes() == 0) return;
  for (int64_t h = 0; h < heads_; ++h) std::memmove(at(b, h, 0), at(b, h, first), size_t(n) * row_bytes());
}

void CacheRows::move(const Move& m, int64_t h) {
  if (m.rows == 0 || row_bytes() == 0) return;
  auto* const spare = static_cast<std::byte*>(spare_.reserve(0)) + size_t(h) * head_bytes();
  const std::byte* const from = m.from == kSpare ? spare : at(m.from, h, 0);
  std::byte* const to = m.to == kSpare ? spare : at(m.to, h, 0);
  std::memcpy(to, from, size_t(m.rows) * row_bytes());
}

View<const void> CacheRows::view(int64_t first, int64_t rows) const {
  const int64_t sizes[] = {batch_, heads_, rows, dim_};
  const int64_t steps[] = {heads_ * capacity_ * dim_, capacity_ * dim_, dim_, 1};
  return {data_ + size_t(first) * row_bytes(), type_, Layout(sizes, steps)};
}

std::vector<CacheRows::Move> moves_of(const std::vector<int32_t>& beams, const std::vector<int32_t>& used) {
  const size_t batch = beams.size();
  std::vector<int> readers(batch, 0);  // who else still needs this entry
  std::vector<char> done(batch, 0);
  std::vector<size_t> free;
  std::vector<CacheRows::Move> moves;
  for (size_t b = 0; b < batch; ++b) {
    if (size_t(beams[b]) == b) done[b] = 1;
    else ++readers[size_t(beams[b])];
  }
  for (size_t b = 0; b < batch; ++b)
    if (!done[b] && readers[b] == 0) free.push_back(b);
  while (!free.empty()) {
    const size_t to = free.back(), from = size_t(beams[to]);
    free.pop_back();
    moves.push_back({int64_t(from), int64_t(to), used[from]});
    done[to] = 1;
    if (--readers[from] == 0 && !done[from]) free.push_back(from);
  }
  for (size_t first = 0; first < batch; ++first) {  // what is left are rings
    if (done[first]) continue;
    moves.push_back({int64_t(first), CacheRows::kSpare, used[first]});
    size_t to = first;
    for (; size_t(beams[to]) != first; to = size_t(beams[to])) {
      moves.push_back({beams[to], int64_t(to), used[size_t(beams[to])]});
      done[to] = 1;
    }
    moves.push_back({CacheRows::kSpare, int64_t(to), used[first]});
    done[to] = 1;
  }
  return moves;
}

void write_rows(CacheRows& keys, CacheRows& values, View<const void> key, View<const void> value,
                const std::vector<NewRows>& parts, const Call& call) {
  const auto write = [&](int64_t item) {
    const int64_t b = item / keys.heads(), h = item % keys.heads();
    const NewRows& part = parts[size_t(b)];
    keys.write(key, b, h, part.first, part.n, part.at);
    values.write(value, b, h, part.first, part.n, part.at);
  };
  each_item(call, int64_t(parts.size()) * keys.heads(), (key.size() + value.size()) * int64_t(size_of(key.dtype)),
            write);
}

void reorder_rows(CacheRows& keys, CacheRows& values, const std::vector<int32_t>& beams,
                  const std::vector<int32_t>& used, const Call& call) {
  const std::vector<CacheRows::Move> moves = moves_of(beams, used);
  int64_t bytes = 0;
  for (const auto& m : moves) bytes += m.rows * (keys.entry_row_bytes() + values.entry_row_bytes());
  for (const auto& m : moves) {
    if (m.to != CacheRows::kSpare) continue;
    keys.prepare_spare();
    values.prepare_spare();
  }
  each_item(call, keys.heads(), bytes, [&](int64_t h) {
    for (const auto& m : moves) {
      keys.move(m, h);
      values.move(m, h);
    }
  });
}

void check_shape(const char* function, const CacheShape& s, int64_t capacity) {
  if (!is_floating(s.dtype))
    dtype_error("{}: the type is {}, expected float32, float64, float16 or bfloat16", function, s.dtype);
  if (capacity < 0 || capacity > kMostPositions)
    option_error("{}: the capacity is {} positions, expected 0 to 2^30", function, capacity);
  int64_t elements = std::max<int64_t>(1, capacity);
  for (const int64_t size : {s.batch, s.key_heads, std::max(s.key_dim, s.value_dim), std::min(s.key_dim, s.value_dim)})
    if (size < 0) elements = kMostElements + 1;
  for (const int64_t size : {s.batch, s.key_heads, std::max(s.key_dim, s.value_dim)})
    if (size > 0) elements = elements > kMostElements / size ? kMostElements + 1 : elements * size;
  if (elements > kMostElements)
    shape_error(
        "{}: batch is {}, key_heads {}, key_dim {}, value_dim {} and the capacity {}; expected 0 or more each, and at most "
        "2^48 elements",
        function, s.batch, s.key_heads, s.key_dim, s.value_dim, capacity);
}

void check_rows(const char* function, const CacheShape& s, View<const void> key, View<const void> value,
                View<const int32_t> rows) {
  arguments::floating(function, "key", key);
  arguments::floating(function, "value", value);
  for (const bool is_key : {true, false}) {
    const View<const void> v = is_key ? key : value;
    const char* name = is_key ? "key" : "value";
    if (v.rank != 4) shape_error("{}: {} has shape {}, expected {{batch, key heads, rows, size}}", function, name, v);
    if (v.dtype != s.dtype)
      dtype_error("{}: {} has type {} but the cache has {}; convert the rows, or make the cache of their type",
                  function, name, v.dtype, s.dtype);
    arguments::shape(function, name, v, {s.batch, s.key_heads, key.shape[2], is_key ? s.key_dim : s.value_dim});
  }
  if (!rows) return;
  arguments::tensor(function, "rows", rows);
  arguments::shape(function, "rows", rows, {s.batch});
  for (int64_t b = 0; b < s.batch; ++b)
    if (rows(b) < 0 || rows(b) > key.shape[2])
      option_error("{}: rows[{}] is {}, expected 0 to {}: so many rows key has", function, b, rows(b), key.shape[2]);
}

void check_query(const char* function, const CacheShape& s, View<const void> query, int64_t rows) {
  arguments::floating(function, "query", query);
  if (query.rank != 4 || query.shape[0] != s.batch || query.shape[2] != rows)
    shape_error(
        "{}: query has shape {}, expected {{{}, query heads, {}, size}} for the rows that were appended last; for other "
        "queries pass keys(), values(), lengths and a position yourself",
        function, query, s.batch, rows);
}

std::vector<int32_t> checked_beams(const char* function, View<const int32_t> beams, int64_t batch) {
  arguments::tensor(function, "beams", beams);
  arguments::shape(function, "beams", beams, {batch});
  std::vector<int32_t> checked;
  for (int64_t b = 0; b < batch; ++b) {
    if (beams(b) < 0 || beams(b) >= batch)
      option_error("{}: beams[{}] is {}, expected 0 to {}: an entry of the batch", function, b, beams(b), batch - 1);
    checked.push_back(beams(b));
  }
  return checked;
}

std::vector<int64_t> checked_steps(const char* function, View<const int32_t> steps, int64_t batch) {
  arguments::tensor(function, "steps", steps);
  arguments::shape(function, "steps", steps, {batch});
  std::vector<int64_t> checked;
  for (int64_t b = 0; b < batch; ++b) checked.push_back(steps(b));
  return checked;
}

}  // namespace qkv
