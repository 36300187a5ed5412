#include "qkv/cache.h"

#include <algorithm>

#include "core/parallel.h"
#include "nn/arguments.h"
#include "nn/cache_rows.h"

namespace qkv {

struct KeyValueCache::State {
  State(const CacheShape& s, int64_t capacity, Growth g)
      : shape(s),
        growth(g),
        keys(s.dtype, s.batch, s.key_heads, s.key_dim, capacity),
        values(s.dtype, s.batch, s.key_heads, s.value_dim, capacity),
        lengths(size_t(s.batch), 0),
        offsets(size_t(s.batch), 0),
        parts(size_t(s.batch)) {}

  int64_t length() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
  void grow(int64_t capacity) {
    check_shape("KeyValueCache", shape, capacity);
    CacheRows more_keys = keys.resized(capacity, lengths), more_values = values.resized(capacity, lengths);
    keys = std::move(more_keys);
    values = std::move(more_values);
  }
  /// Where the new rows of each entry go; room for them.
  void make_room(View<const void> key, View<const int32_t> rows);
  void rollback(const std::vector<int64_t>& steps);

  CacheShape shape;
  Growth growth;
  CacheRows keys, values;
  std::vector<int32_t> lengths, offsets;
  std::vector<NewRows> parts;
  int64_t last_rows = 0;
};

void KeyValueCache::State::make_room(View<const void> key, View<const int32_t> rows) {
  int64_t needed = 0, longest = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    const int64_t n = rows ? rows(b) : key.shape[2], at = lengths[size_t(b)];
    parts[size_t(b)] = {0, n, at};
    if (at + n > needed) needed = at + n, longest = b;
  }
  if (needed > kMostPositions)
    option_error("KeyValueCache::append: entry {} would hold {} positions, at most 2^30 are possible", longest, needed);
  const int64_t capacity = keys.capacity();
  if (needed <= capacity) return;
  if (growth == Growth::kFixed)
    option_error(
        "KeyValueCache::append: entry {} would hold {} positions, the capacity is {}; make it larger, let it grow, or roll "
        "back",
        longest, needed, capacity);
  grow(std::max(needed, std::min(2 * capacity, kMostPositions)));
}

void KeyValueCache::State::rollback(const std::vector<int64_t>& steps) {
  for (size_t b = 0; b < steps.size(); ++b)
    if (steps[b] < 0 || steps[b] > lengths[b])
      option_error("KeyValueCache::rollback: {} steps of entry {}, expected 0 to {}: so many positions it has",
                   steps[b], b, lengths[b]);
  for (size_t b = 0; b < steps.size(); ++b) lengths[b] -= int32_t(steps[b]);
  offsets = lengths;
  last_rows = 0;
}

KeyValueCache::KeyValueCache(const CacheShape& shape, int64_t capacity, Growth growth) {
  check_shape("KeyValueCache", shape, capacity);
  state_ = std::make_unique<State>(shape, capacity, growth);
}
KeyValueCache::~KeyValueCache() = default;
KeyValueCache::KeyValueCache(KeyValueCache&&) noexcept = default;
KeyValueCache& KeyValueCache::operator=(KeyValueCache&&) noexcept = default;

void KeyValueCache::append(View<const void> key, View<const void> value, View<const int32_t> rows, const Call& call) {
  State& s = *state_;
  check_rows("KeyValueCache::append", s.shape, key, value, rows);
  stop_point(call.stop);
  s.make_room(key, rows);
  write_rows(s.keys, s.values, key, value, s.parts, call);
  s.offsets = s.lengths;
  for (size_t b = 0; b < s.parts.size(); ++b) s.lengths[b] += int32_t(s.parts[b].n);
  s.last_rows = key.shape[2];
}

Inputs KeyValueCache::inputs(View<const void> query) const {
  check_query("KeyValueCache::inputs", state_->shape, query, state_->last_rows);
  Inputs in{.query = query, .key = keys(), .value = values()};
  in.key_lengths = lengths();
  in.query_offset = offsets();
  return in;
}

View<const void> KeyValueCache::keys() const { return state_->keys.view(0, state_->length()); }
View<const void> KeyValueCache::values() const { return state_->values.view(0, state_->length()); }
View<const int32_t> KeyValueCache::lengths() const { return as_view(state_->lengths); }
View<const int32_t> KeyValueCache::offsets() const { return as_view(state_->offsets); }
int64_t KeyValueCache::length() const { return state_->length(); }
int64_t KeyValueCache::capacity() const { return state_->keys.capacity(); }
size_t KeyValueCache::bytes() const { return state_->keys.bytes() + state_->values.bytes(); }

void KeyValueCache::rollback(int64_t steps) {
  state_->rollback(std::vector<int64_t>(size_t(state_->shape.batch), steps));
}
void KeyValueCache::rollback(View<const int32_t> steps) {
  state_->rollback(checked_steps("KeyValueCache::rollback", steps, state_->shape.batch));
}
void KeyValueCache::clear() { state_->rollback(std::vector<int64_t>(state_->lengths.begin(), state_->lengths.end())); }

void KeyValueCache::reorder(View<const int32_t> beams, const Call& call) {
  State& s = *state_;
  const std::vector<int32_t> checked = checked_beams("KeyValueCache::reorder", beams, s.shape.batch);
  reorder_rows(s.keys, s.values, checked, s.lengths, call);
  reorder_numbers(s.lengths, checked);
  reorder_numbers(s.offsets, checked);
}

void KeyValueCache::reserve(int64_t capacity) {
  check_shape("KeyValueCache::reserve", state_->shape, capacity);
  if (capacity > state_->keys.capacity()) state_->grow(capacity);
}

}  // namespace qkv
