// Caches of keys and values for generation: rows are appended, attention reads them in place.
//
//   qkv::KeyValueCache cache({.dtype = qkv::DType::kFloat32, .batch = 2, .key_heads = 8, .key_dim = 64, .value_dim = 64});
//   qkv::rotary_forward(rotary, k, {.offsets = cache.lengths()}, k);         // new rows stand behind those that are there
//   cache.append(k, v);                                                      // k, v {2, 8, L, 64}
//   qkv::forward(causal, cache.inputs(q), {.out = out});                     // q {2, 32, L, 64}
//
// Any cut of a sequence into appends gives the bits of the whole sequence at once. A cache is no more thread-safe than a vector.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "qkv/attention.h"

namespace qkv {

struct CacheShape {
  DType dtype = DType::kFloat32;  ///< float32, float64, float16 or bfloat16: that of the queries
  int64_t batch = 1, key_heads = 1, key_dim = 0, value_dim = 0;
};

/// Keys {B, Hkv, capacity, D} and values {B, Hkv, capacity, Dv} of every position so far, contiguous. Entries of the batch may
/// have different lengths. Views that it gives hold until the next change.
class QKV_EXPORT KeyValueCache {
 public:
  enum class Growth : uint8_t { kFixed, kDoubles };  ///< what happens beyond the capacity: an error, or larger memory

  /// Throws ShapeError, DtypeError, OptionError.
  explicit KeyValueCache(const CacheShape&, int64_t capacity = 256, Growth = Growth::kDoubles);
  ~KeyValueCache();
  KeyValueCache(KeyValueCache&&) noexcept;
  KeyValueCache& operator=(KeyValueCache&&) noexcept;

  /// Copies rows behind those that are there.   key {B, Hkv, n, D}, value {B, Hkv, n, Dv}, any strides, of the cache's type;
  /// rows {B}: how many of the n each entry gets, the first ones; absent: all. Throws ShapeError, DtypeError, and OptionError
  /// beyond a fixed capacity, and then nothing has changed.
  void append(View<const void> key, View<const void> value, View<const int32_t> rows = {}, const Call& = {});

  /// Everything that attention needs from a cache, for the queries of the rows that were appended last: key, value, key_lengths,
  /// query_offset.   query {B, Hq, n, D}; throws ShapeError where n is another. Queries of other rows (cross-attention):
  /// keys(), values() and lengths().
  Inputs inputs(View<const void> query) const;
  View<const void> keys() const;        ///< {B, Hkv, length(), D}
  View<const void> values() const;      ///< {B, Hkv, length(), Dv}
  View<const int32_t> lengths() const;  ///< {B}: positions of each entry, where its next row will stand
  View<const int32_t> offsets() const;  ///< {B}: where the rows of the last append stand
  int64_t length() const;               ///< of the longest entry
  int64_t capacity() const;
  size_t bytes() const;  ///< of memory held

  /// Takes the last positions back, as if they had never been appended: `steps` of every entry, or steps[b] {B} of each (what
  /// speculation got wrong). Throws OptionError where there are fewer.
  void rollback(int64_t steps);
  void rollback(View<const int32_t> steps);
  void clear();
  /// Entry b becomes what entry beams[b] was, lengths too; beams {B} may name an entry twice. Only entries that change are copied.
  /// Throws ShapeError, OptionError.
  void reorder(View<const int32_t> beams, const Call& = {});
  /// Memory for so many positions. Throws OptionError.
  void reserve(int64_t capacity);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a sliding window sees, and what may be taken back.
struct SlidingOptions {
  int64_t window = 0;    ///< W: a query sees its own key and the W - 1 before, Window{W - 1, 0}
  int64_t rollback = 0;  ///< R: how far behind the furthest position ever reached one can go back, exactly
  int64_t chunk = 1;     ///< most rows of one append whose queries can attend through the cache
};

/// The last W + max(rollback, chunk - 1) positions of each entry: memory does not grow with the text. For attention with Causal and
/// Window{W - 1, 0}; the bits are those of the whole sequence with the same window.
class QKV_EXPORT SlidingCache {
 public:
  /// Throws ShapeError, DtypeError, OptionError.
  SlidingCache(const CacheShape&, const SlidingOptions&);
  ~SlidingCache();
  SlidingCache(SlidingCache&&) noexcept;
  SlidingCache& operator=(SlidingCache&&) noexcept;

  /// As KeyValueCache::append(). More rows than `chunk` at once are legal; the last ones are kept, and inputs() for their queries is
  /// refused: of a long prompt, attend to its own keys and values, or append it in chunks.
  void append(View<const void> key, View<const void> value, View<const int32_t> rows = {}, const Call& = {});

  /// As KeyValueCache::inputs(), with key_start.
  Inputs inputs(View<const void> query) const;
  /// {B, Hkv, n, D}: what the queries of the last append see, in the order of time: the last W positions and one more for every
  /// further row. Entries of other lengths may have older columns before; Window hides them.
  View<const void> keys() const;
  View<const void> values() const;
  View<const int32_t> key_start() const;    ///< {B}: position of column 0
  View<const int32_t> key_lengths() const;  ///< {B}: columns of each entry
  View<const int32_t> lengths() const;      ///< {B}: all positions so far, where the next row will stand
  View<const int32_t> offsets() const;      ///< {B}: where the rows of the last append stand
  size_t bytes() const;

  /// As KeyValueCache::rollback(), to R positions behind the furthest one ever reached, or to any while nothing is gone. Throws
  /// OptionError where a window would miss keys.
  void rollback(int64_t steps);
  void rollback(View<const int32_t> steps);
  void clear();
  void reorder(View<const int32_t> beams, const Call& = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv
