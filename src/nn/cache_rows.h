// Memory of a cache: rows of keys or of values, and what both caches do with them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/workspace.h"
#include "qkv/cache.h"

namespace qkv {

/// {batch, heads, capacity, dim} of one element type, contiguous. What was never written is never read.
class CacheRows {
 public:
  CacheRows(DType type, int64_t batch, int64_t heads, int64_t dim, int64_t capacity);

  int64_t capacity() const { return capacity_; }
  int64_t heads() const { return heads_; }
  size_t bytes() const { return memory_.bytes() + spare_.bytes(); }
  int64_t entry_row_bytes() const { return heads_ * int64_t(row_bytes()); }  ///< of one position, all heads
  /// A copy with another capacity of the first used[b] rows of each entry.
  CacheRows resized(int64_t capacity, const std::vector<int32_t>& used) const;
  /// Rows [first, first + n) of `from` become rows [at, at + n) of one entry and head.
  void write(View<const void> from, int64_t b, int64_t h, int64_t first, int64_t n, int64_t at);
  /// Rows [first, first + n) of an entry become its rows [0, n).
  void shift(int64_t b, int64_t first, int64_t n);

  struct Move {
    int64_t from, to;  // entries, or kSpare
    int64_t rows;
  };
  static constexpr int64_t kSpare = -1;
  /// Memory of a spare entry; from the second call on there is none to allocate.
  void prepare_spare() { spare_.reserve(entry_bytes()); }
  void move(const Move&, int64_t h);

  View<const void> view(int64_t first, int64_t rows) const;

 private:
  size_t row_bytes() const { return size_t(dim_) * size_of(type_); }
  size_t head_bytes() const { return size_t(capacity_) * row_bytes(); }
  size_t entry_bytes() const { return size_t(heads_) * head_bytes(); }
  std::byte* at(int64_t b, int64_t h, int64_t row) const;

  DType type_;
  int64_t batch_, heads_, dim_, capacity_;
  AlignedBuffer memory_, spare_;
  std::byte* data_ = nullptr;
};

/// Of one entry: rows [first, first + n) of the new ones become its rows from `at` on.
struct NewRows {
  int64_t first = 0, n = 0, at = 0;
};
void write_rows(CacheRows& keys, CacheRows& values, View<const void> key, View<const void> value,
                const std::vector<NewRows>& parts, const Call&);

/// The copies of a reordering, none of which overwrites an entry that is still needed. used {B}: rows of each entry.
std::vector<CacheRows::Move> moves_of(const std::vector<int32_t>& beams, const std::vector<int32_t>& used);
void reorder_rows(CacheRows& keys, CacheRows& values, const std::vector<int32_t>& beams,
                  const std::vector<int32_t>& used, const Call&);
inline void reorder_numbers(std::vector<int32_t>& numbers, const std::vector<int32_t>& beams) {
  std::vector<int32_t> reordered;
  for (const int32_t b : beams) reordered.push_back(numbers[size_t(b)]);
  numbers.swap(reordered);
}
inline View<const int32_t> as_view(const std::vector<int32_t>& numbers) {
  return {numbers.data(), {int64_t(numbers.size())}};
}

// ---- checks; `function` begins the message ----

inline constexpr int64_t kMostPositions = int64_t{1} << 30;  // as in attention
/// With memory for so many positions.
void check_shape(const char* function, const CacheShape&, int64_t capacity);
void check_rows(const char* function, const CacheShape&, View<const void> key, View<const void> value,
                View<const int32_t> rows);
/// Throws where `query` is not for the `rows` rows that were appended last.
void check_query(const char* function, const CacheShape&, View<const void> query, int64_t rows);
std::vector<int32_t> checked_beams(const char* function, View<const int32_t> beams, int64_t batch);
std::vector<int64_t> checked_steps(const char* function, View<const int32_t> steps, int64_t batch);

}  // namespace qkv
