// Whole matrices on request: weights, and scores at three stages. A sweep of its own after the forward pass, for small
// inputs, chosen rows and interchange; nothing here touches `out`.
#pragma once
#include <cstdint>
#include <span>

#include "attention/tile_state.h"
#include "core/workspace.h"

namespace qkv {

template <class T> class Matrices {
 public:
  Matrices(const Bound&, const Outputs&);  ///< checks the views
  bool wanted() const { return weights_ || raw_ || modified_ || masked_; }
  /// Weights need row_max and row_sum; where the caller has none, memory of the workspace takes their place.
  void ask_for_sums(Workspace::Impl&, RowsOf& row_max, RowsOf& row_sum) const;
  void write(Workspace::Impl&, const RowsOf& row_max, const RowsOf& row_sum, const Call&) const;

 private:
  RowsOf check(View<const void>, const char* name) const;
  void write_tile(TileState<T>&, BlockScratch<T>&, int64_t first_row, const RowsOf& row_max, const RowsOf& row_sum,
                  const Call&) const;
  void write_weights(TileState<T>&, BlockScratch<T>&, int64_t first_row, int32_t block, const T* m, const T* l) const;
  void write_scores(TileState<T>&, BlockScratch<T>&, int64_t first_row, int32_t block) const;
  void put(const RowsOf& to, const RowTile&, int64_t first_row, int32_t first_column, int keys, const T* s,
           BlockScratch<T>&) const;
  void fill(const RowsOf& to, int batch, int head, int64_t first_row, int64_t rows, T value) const;

  const Bound& b_;
  View<const int32_t> chosen_;
  int64_t rows_ = 0;  ///< of the matrices
  RowsOf weights_, raw_, modified_, masked_;
  Steps<T> steps_;
};

/// Row sums as T in tile order: m, l {lanes} of the rows of a tile.
template <class T> void gather_sums(const RowTile&, const RowsOf& row_max, const RowsOf& row_sum, T* m, T* l);

}  // namespace qkv
