// An attention that has met the tensors of one call: checked once, here, before a path is chosen. What comes after trusts it.
#pragma once
#include <cstdint>
#include <span>

#include "core/workspace.h"
#include "qkv/attention.h"

namespace qkv {

/// One sequence of the batch.
struct Entry {
  int32_t queries, keys;           ///< rows and columns that exist
  int32_t offset, key_start;       ///< positions of row 0 and of column 0
  int64_t first_query, first_key;  ///< where it starts in a packed tensor; 0 otherwise
};

/// A tensor of rows: where row i of head h of entry b begins, whatever the layout.
struct RowsOf {
  std::byte* data = nullptr;
  DType type = DType::kFloat32;
  int64_t element = 4;                               ///< bytes
  int64_t batch = 0, head = 0, row = 0, column = 0;  ///< strides in elements

  explicit operator bool() const { return data != nullptr; }
  void* at(int64_t b, int64_t h, int64_t i) const { return data + (b * batch + h * head + i * row) * element; }
};
/// The same view with its axes by name. Rank 4 {B, H, L, X}, packed rank 3 {T, H, X}; without the last axis where `flat`.
RowsOf rows_of(View<const void> v, bool packed, bool flat);

/// Dropout of one call; nothing where the call is no training.
struct Dropout {
  bool active = false;
  uint64_t seed = 0, threshold = 0;  ///< see dropout_keeps()
  View<const void> keep{};           ///< given instead of the seed: bool {B, Hq, L, S}, each axis 1 or full
  double factor = 1;                 ///< 1 / (1 - p), 0 where p is 1
  explicit operator bool() const { return active; }
};

/// Whether a call reads values. Where it does not and there are none, they have no columns.
enum class Values : bool { kNeeded, kOptional };

struct Bound {
  Bound(const Attention&, const Inputs&, CallArena&, const char* function, Values = Values::kOptional);

  bool is_double() const { return query.type == DType::kFloat64; }
  int batch() const { return int(entries.size()); }
  int group() const { return key_heads == 0 ? 1 : query_heads / key_heads; }
  int key_head(int h) const { return tiled ? h % key_heads : h / group(); }
  /// The n-th query head of a key head.
  int query_head(int key_head, int n) const { return tiled ? n * key_heads + key_head : key_head * group() + n; }
  bool has_sinks() const { return sinks_given || zero_key; }
  double sink(int head) const;
  /// What the row sees as far as ranges know: the columns that exist, cut by each pattern.
  KeyRange range(int batch, int head, int row) const;
  /// Whether every pattern sees the pair.
  bool sees(Site at) const;

  const Attention& attention;
  const Inputs& inputs;
  std::span<const Entry> entries;
  int query_heads = 0, key_heads = 0, head_dim = 0, value_dim = 0;
  int64_t longest_query = 0, longest_key = 0;  ///< L and S of the tensors; of packed batches the longest sequence
  bool packed = false, tiled = false;
  double scale = 1;
  RowsOf query, key, value;
  View<const void> sinks;
  bool sinks_given = false, zero_key = false;
  Dropout dropout;

  std::span<const passes::Pattern* const> patterns;  ///< all, in the order of the attention
  std::span<const passes::Pattern* const> general;   ///< those that are more than one range a row
  std::span<const passes::Score* const> scores;      ///< all, in order
  std::span<const passes::Score* const> hiding;      ///< those that can hide pairs
  bool masks_read_head = false;                      ///< some pattern's answer may differ from head to head

  /// Pairs are hidden one by one somewhere, so that tiles are looked at before they are classified.
  bool has_general_masks() const { return !general.empty() || !hiding.empty(); }
};

/// Checks an output {B, Hq, L} + {last}, packed {total queries, Hq} + {last}. last < 0: there is no such axis.
RowsOf check_output(const Bound&, View<const void>, const char* function, const char* name, DType type, int64_t last,
                    const char* advice = "allocate it so");

}  // namespace qkv
