// What one work item of the backward pass holds of its keys, and the steps that take it through some queries.
#pragma once
#include <cstdint>
#include <span>

#include "attention/key_plan.h"
#include "attention/tile_state.h"

namespace qkv {

/// Rows of queries that are taken through a block of keys together: one tile of the tile map.
inline constexpr int kRowsOfStep = kernels::kMaxLanes;

/// Some queries of one head, ready for the products. Rows are the operand that is broadcast.
template <class T> struct QueryRows {
  const RowTile* tile;
  BlockRows<T> query, dout;    ///< as stored, widened
  const T* scaled;             ///< {rows, head_dim}: with exactly the forward's rounding
  const T *m, *share, *delta;  ///< {rows}: w = exp(s - m) * share,  ds = w (dp - delta)
};

/// A tile of keys: so many that they fill three vectors. Everything transposed has the stride `lanes`.
template <class T> struct KeyTile {
  KeyRange columns;  ///< those that exist
  int lanes = 0;
  T *k = nullptr, *v = nullptr;    ///< {head_dim, lanes}, {value_dim, lanes}
  T *dk = nullptr, *dv = nullptr;  ///< the same; sums over the queries
  T* ds = nullptr;                 ///< {kRowsOfStep, lanes}: gradients by the scores of the last queries
  T* dmatrix = nullptr;            ///< the same by what Wanted::matrix added to them
  uint64_t* seen = nullptr;        ///< {kRowsOfStep}: bit j of word r says whether row r sees the key of lane j
  int first_row = 0, rows = 0;     ///< of the last queries: those that see any of these keys
  bool hides = false;              ///< not all of these rows see all of these keys
};

/// What the caller wants of an item.
struct Wanted {
  bool dquery = false, dkey = false, dvalue = false;
  int matrix = -1;  ///< the step of the scores whose gradient is wanted for each pair; -1: none
};

template <class T> class KeyBlock {
 public:
  static constexpr int kMostTiles = kKeysOfItem / 8;

  /// Lays out; with an empty carver only counts.
  void carve(Carver&, const Bound&, const kernels::PrefillKernels<T>&, bool with_matrix);
  /// Packs the keys and values of an item and sets its sums to 0.
  void start(const Bound&, const Steps<T>&, const KeyItem&, Wanted);
  /// Takes queries through all tiles: adds to dk and dv, leaves ds. sums[n]: where the n-th step of the scores adds the gradients
  /// by its tensors. Returns whether any of the queries sees any of the keys.
  bool step(const Bound&, const Steps<T>&, const QueryRows<T>&, std::span<const std::span<double* const>> sums);
  /// dq {rows, stride} += ds k, of the queries of the last step.
  void add_to_queries(const Bound&, T* dq, int64_t stride) const;
  std::span<const KeyTile<T>> tiles() const { return {tiles_, size_t(count_)}; }

 private:
  bool look_at(const Bound&, const RowTile&, KeyTile<T>&);
  void products(const Bound&, const Steps<T>&, const QueryRows<T>&, KeyTile<T>&,
                std::span<const std::span<double* const>> sums);
  uint64_t kept_lanes(int row, int n) const;
  Sites sites(const Bound&, const RowTile&, const KeyTile<T>&);
  void modify(const Bound&, const Sites&, int64_t numbers);
  void turn(const Bound&, const Sites&, int64_t numbers, T* ds, T* dmatrix,
            std::span<const std::span<double* const>> sums);

  const kernels::BackwardKernels<T>& kernels_ = kernels::backward_kernels<T>();
  KeyTile<T> tiles_[kMostTiles];
  int count_ = 0;
  Wanted wanted_;
  int32_t batch_ = 0;
  BlockRows<T> keys_{};
  bool keys_finite_ = true, rows_finite_ = true;
  T* key_rows_ = nullptr;  ///< {kKeysOfItem, widest}: where keys and values are widened
  T* value_rows_ = nullptr;
  T* s_ = nullptr;       ///< {kRowsOfStep, lanes}: scores, then weights
  T* before_ = nullptr;  ///< {steps, kRowsOfStep, lanes}: scores before each step
  T* ones_ = nullptr;    ///< {kMaxLanes}
  uint64_t* words_ = nullptr;
  uint64_t *keep_ = nullptr,
           *kept_ = nullptr;  ///< what dropout keeps, of a tile {kRowsOfStep} and of the item {kRowsOfStep, words}
  int32_t *column_ = nullptr, *key_ = nullptr;
};

}  // namespace qkv
