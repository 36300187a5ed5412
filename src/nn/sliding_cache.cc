// The cache of a sliding window. Each entry's rows lie in the order of time, from row 0 of its memory on; where there is no room for
// more, the last ones move to the beginning, which costs each position a few copies.
#include <algorithm>

#include "core/parallel.h"
#include "nn/arguments.h"
#include "nn/cache_rows.h"
#include "qkv/cache.h"

namespace qkv {
namespace {

/// Positions that are never dropped.
int64_t kept_of(const SlidingOptions& o) { return o.window + std::max(o.rollback, o.chunk - 1); }
/// And rows beside them, so that most appends move nothing.
int64_t capacity_of(const SlidingOptions& o) { return kept_of(o) + std::max<int64_t>(16, kept_of(o) / 8); }

void check_options(const SlidingOptions& o) {
  const auto expect = [](const char* name, int64_t value, int64_t least) {
    if (value < least || value > kMostPositions / 8)
      option_error("SlidingCache: {} is {}, expected {} to 2^27", name, value, least);
  };
  expect("window", o.window, 1);
  expect("rollback", o.rollback, 0);
  expect("chunk", o.chunk, 1);
}

}  // namespace

struct SlidingCache::State {
  State(const CacheShape& s, const SlidingOptions& o)
      : shape(s),
        options(o),
        kept(kept_of(o)),
        keys(s.dtype, s.batch, s.key_heads, s.key_dim, capacity_of(o)),
        values(s.dtype, s.batch, s.key_heads, s.value_dim, capacity_of(o)),
        parts(size_t(s.batch)) {
    for (auto* numbers : {&lengths, &offsets, &first, &oldest, &start, &columns}) numbers->assign(size_t(s.batch), 0);
  }

  int64_t used(size_t b) const { return lengths[b] - first[b]; }  // rows in memory
  void make_room(size_t b, int64_t n);
  void look();
  void rollback(const std::vector<int64_t>& steps);
  void forget_last_append() {
    offsets = lengths;
    last_rows = 0;
    look();
  }

  CacheShape shape;
  SlidingOptions options;
  int64_t kept;
  CacheRows keys, values;
  std::vector<NewRows> parts;
  std::vector<int32_t> lengths, offsets;
  std::vector<int32_t> first;   // position of row 0 of each entry's memory
  std::vector<int32_t> oldest;  // position that rollback may count on; memory may still hold older ones
  // What is shown: rows [row, row + width) of the memory.
  int64_t row = 0, width = 0;
  std::vector<int32_t> start, columns;
  int64_t last_rows = 0;
};

/// Where n new rows of entry b go, and room for them.
void SlidingCache::State::make_room(size_t b, int64_t n) {
  const int64_t held = used(b), stays = held + n <= keys.capacity() ? held : std::max<int64_t>(0, kept - n);
  keys.shift(int64_t(b), held - stays, stays);
  values.shift(int64_t(b), held - stays, stays);
  const int64_t skipped = stays == 0 ? std::max<int64_t>(0, n - kept) : 0;
  parts[b] = {skipped, n - skipped, stays};
  first[b] = int32_t(lengths[b] - stays + skipped);
}

/// The columns that the last append's queries see: from `window` positions before the first of them on; where they cannot attend,
/// the last `window` positions.
void SlidingCache::State::look() {
  const bool attend = last_rows > 0 && last_rows <= options.chunk;
  row = keys.capacity();
  width = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int64_t end = attend ? offsets[b] + 1 : lengths[b];
    row = std::min(row, std::max<int64_t>(0, end - options.window - first[b]));
  }
  if (lengths.empty()) row = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    start[b] = int32_t(first[b] + row);
    columns[b] = int32_t(used(b) - row);
    width = std::max<int64_t>(width, columns[b]);
  }
}

void SlidingCache::State::rollback(const std::vector<int64_t>& steps) {
  for (size_t b = 0; b < steps.size(); ++b) {
    const int64_t most = oldest[b] == 0 ? lengths[b] : lengths[b] - options.window - oldest[b];
    if (steps[b] < 0 || steps[b] > most)
      option_error(
          "SlidingCache::rollback: {} steps of entry {}, expected 0 to {}: before that the window's keys are gone; ask for "
          "more when the cache is made",
          steps[b], b, most);
  }
  for (size_t b = 0; b < steps.size(); ++b) lengths[b] -= int32_t(steps[b]);
  forget_last_append();
}

SlidingCache::SlidingCache(const CacheShape& shape, const SlidingOptions& options) {
  check_options(options);
  check_shape("SlidingCache", shape, capacity_of(options));
  state_ = std::make_unique<State>(shape, options);
}
SlidingCache::~SlidingCache() = default;
SlidingCache::SlidingCache(SlidingCache&&) noexcept = default;
SlidingCache& SlidingCache::operator=(SlidingCache&&) noexcept = default;

void SlidingCache::append(View<const void> key, View<const void> value, View<const int32_t> rows, const Call& call) {
  State& s = *state_;
  check_rows("SlidingCache::append", s.shape, key, value, rows);
  for (size_t b = 0; b < s.lengths.size(); ++b)
    if (s.lengths[b] + (rows ? rows(int64_t(b)) : key.shape[2]) > kMostPositions)
      option_error("SlidingCache::append: entry {} would pass position 2^30; clear the cache and count from 0", b);
  stop_point(call.stop);
  s.offsets = s.lengths;
  for (size_t b = 0; b < s.lengths.size(); ++b) {
    const int64_t n = rows ? rows(int64_t(b)) : key.shape[2];
    s.make_room(b, n);
    s.lengths[b] += int32_t(n);
    s.oldest[b] = int32_t(std::max<int64_t>(s.oldest[b], s.lengths[b] - s.kept));
  }
  write_rows(s.keys, s.values, key, value, s.parts, call);
  s.last_rows = key.shape[2];
  s.look();
}

Inputs SlidingCache::inputs(View<const void> query) const {
  const State& s = *state_;
  check_query("SlidingCache::inputs", s.shape, query, s.last_rows);
  if (s.last_rows > s.options.chunk)
    option_error(
        "SlidingCache::inputs: {} rows were appended at once but chunk is {}, so older keys of the first ones are gone; attend "
        "to the rows' own keys and values, append chunks, or make the cache for larger ones",
        s.last_rows, s.options.chunk);
  Inputs in{.query = query, .key = keys(), .value = values()};
  in.key_lengths = key_lengths();
  in.query_offset = offsets();
  in.key_start = key_start();
  return in;
}

View<const void> SlidingCache::keys() const { return state_->keys.view(state_->row, state_->width); }
View<const void> SlidingCache::values() const { return state_->values.view(state_->row, state_->width); }
View<const int32_t> SlidingCache::key_start() const { return as_view(state_->start); }
View<const int32_t> SlidingCache::key_lengths() const { return as_view(state_->columns); }
View<const int32_t> SlidingCache::lengths() const { return as_view(state_->lengths); }
View<const int32_t> SlidingCache::offsets() const { return as_view(state_->offsets); }
size_t SlidingCache::bytes() const { return state_->keys.bytes() + state_->values.bytes(); }

void SlidingCache::rollback(int64_t steps) {
  state_->rollback(std::vector<int64_t>(size_t(state_->shape.batch), steps));
}
void SlidingCache::rollback(View<const int32_t> steps) {
  state_->rollback(checked_steps("SlidingCache::rollback", steps, state_->shape.batch));
}
void SlidingCache::clear() {
  for (auto* numbers : {&state_->lengths, &state_->first, &state_->oldest})
    std::fill(numbers->begin(), numbers->end(), 0);
  state_->forget_last_append();
}

void SlidingCache::reorder(View<const int32_t> beams, const Call& call) {
  State& s = *state_;
  const std::vector<int32_t> checked = checked_beams("SlidingCache::reorder", beams, s.shape.batch);
  std::vector<int32_t> used;
  for (size_t b = 0; b < checked.size(); ++b) used.push_back(int32_t(s.used(b)));
  reorder_rows(s.keys, s.values, checked, used, call);
  for (auto* numbers : {&s.lengths, &s.offsets, &s.first, &s.oldest}) reorder_numbers(*numbers, checked);
  s.look();
}

}  // namespace qkv
