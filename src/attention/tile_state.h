// What one work item holds of a tile, and the steps that take it through a block of keys.
#pragma once
#include <cstdint>
#include <span>

#include "attention/mask_band.h"
#include "attention/row_statistics.h"
#include "kernels/kernels.h"

namespace qkv {

template <class T> struct Steps;

/// Running softmax sums of the rows of a tile; see kernels.h for the names.
template <class T> struct TileSums {
  T *m = nullptr, *l = nullptr;  ///< {lanes}
  T* o = nullptr;                ///< {value_dim, lanes}
  RowSumsSoFar<T> rows;
  bool with_rows = false;

  void carve(Carver&, const Bound&, int lanes, int top, bool with_statistics);
  void reset(const Bound&, int lanes);
  void merge(const TileSums& later, const Bound&, const Steps<T>&, const RowTile&);
  void copy_from(const TileSums&, const Bound&, int lanes);
};

/// Scratch that the tiles of an item share.
template <class T> struct BlockScratch {
  T *s = nullptr, *score_copy = nullptr;  ///< {kKeyBlock, lanes}
  T* rows = nullptr;                      ///< {kMaxLanes, widest}
  T *keys = nullptr, *values = nullptr;   ///< a block, widened
  T* transposed = nullptr;                ///< of the decode kernel
  T *alpha = nullptr, *before = nullptr;  ///< {lanes}
  int32_t *column = nullptr, *key = nullptr;
  uint64_t* words = nullptr;             ///< {tiles, kKeyBlock}
  uint64_t* seen = nullptr;              ///< {kKeyBlock}
  uint64_t* keep = nullptr;              ///< {kKeyBlock}: what dropout keeps
  Part* parts = nullptr;                 ///< {tiles}
  kernels::Words* part_words = nullptr;  ///< {tiles}

  void carve(Carver&, const Bound&, int tiles);
};

template <class T> struct TileState {
  RowTile tile;
  bool decode = false;
  T* q = nullptr;       ///< {head_dim, lanes} scaled; of the decode kernel {rows, head_dim}
  T* o_rows = nullptr;  ///< {rows, value_dim}: the decode kernel's sums
  TileSums<T> chunk, total;

  void carve(Carver&, const Bound&, int top, bool with_statistics);
  void start(const Bound&, const Steps<T>&, BlockScratch<T>&);
  void begin_chunk(const Bound&);
  void end_chunk(const Bound&, const Steps<T>&);
};

/// Bit r of words[j] says whether row r has a score against key j at all, s[r * row_stride + j * key_stride] > -inf: for keys and
/// values that are not finite, which 0 * value must not reach. Rows may be lanes of keys, and keys rows of queries.
template <class T>
void words_of_scores(const T* s, int row_stride, int key_stride, int rows, int keys, uint64_t* words);

/// Keys or values of one head, ready to be read: contiguous along the last axis.
template <class T> struct BlockRows {
  const T* first;
  int64_t stride;
  const T* row(int32_t n) const { return first + n * stride; }
};

template <class T> struct Steps {
  explicit Steps(const Bound&);

  /// Takes all tiles of an item through one block of keys.
  void block(const Bound&, const MaskBand&, const Slot&, int unit, int32_t block, std::span<TileState<T>>,
             BlockScratch<T>&) const;
  /// Scores of a tile against columns [first, first + keys): scale and modifiers. s is {keys, lanes}, or {rows, kKeyBlock}
  /// where lanes are keys.
  void scores(const Bound&, const TileState<T>&, BlockRows<T> keys, int32_t first, int n, BlockScratch<T>&) const;
  /// The modifiers alone.
  void modify(const Bound&, const TileState<T>&, int32_t first, int n, BlockScratch<T>&) const;
  /// Rows [first, first + n) of a tensor, counted from the beginning of the packed one where it is packed: in place where they
  /// lie right, widened into `scratch` {n, width} where not.
  BlockRows<T> fetch(const RowsOf&, int batch, int head, int width, int64_t first, int n, T* scratch) const;
  /// The same of the keys and values of a batch entry.
  BlockRows<T> fetch(const Bound& b, const RowsOf& from, int batch, int head, int width, int32_t first, int n,
                     T* scratch) const {
    return fetch(from, batch, head, width, b.entries[size_t(batch)].first_key + first, n, scratch);
  }
  void pack_queries(const Bound&, const RowTile&, bool decode, T* q, T* scratch) const;

  const kernels::RowKernels<T>& rows;
  const kernels::PrefillKernels<T>& prefill;
  const kernels::DecodeKernels<T>& decode;
  DType type;  ///< storage that needs no conversion
  T scale;     ///< on the query

 private:
  void attend(const Bound&, TileState<T>&, Part, kernels::Words, BlockRows<T> keys, BlockRows<T> values, bool finite,
              BlockScratch<T>&) const;
  void attend_decode(const Bound&, TileState<T>&, Part, kernels::Words, BlockRows<T> keys, BlockRows<T> values,
                     bool finite, BlockScratch<T>&) const;
};

}  // namespace qkv
