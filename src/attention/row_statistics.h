// Facts about rows, made beside the online softmax: the same bits in out and lse whether anybody asks or not.
#pragma once
#include <cstdint>

#include "attention/tile_map.h"
#include "core/workspace.h"

namespace qkv {

/// Running sums of the rows of a tile; m, l as in kernels.h, kept by the caller. {lanes} each.
template <class T> struct RowSumsSoFar {
  double* centred = nullptr;   ///< sum of p * (s - m): the entropy but for its constants
  double* distance = nullptr;  ///< sum of p * |query - key|
  T* largest = nullptr;        ///< score of `largest_at`
  int32_t* largest_at = nullptr;
  int32_t* visible = nullptr;  ///< keys seen
  int top = 0;                 ///< how many links are kept
  T* top_score = nullptr;      ///< {lanes, top}, falling
  int32_t* top_at = nullptr;   ///< {lanes, top}; -1: none

  void carve(Carver&, int lanes, int top_n);
  void reset(int lanes);
  /// Before the sums of a block are added: the maximum went from `before` to `now`; l is still the old sum.
  void rescale(int rows, const T* before, const T* now, const T* alpha, const T* l);
  /// One block: scores s (-inf where hidden) and p = exp(s - m). s, p {keys, stride}
  void add(const RowTile&, const T* s, const T* p, int stride, int keys, int32_t first_column, int32_t key_start,
           const T* m);
  /// Those of earlier keys (this; m, l) and later ones together.
  void merge(int rows, const T* m, const T* l, const RowSumsSoFar& later, const T* later_m, const T* later_l);
};

/// Where the facts go; checked views.
struct RowStatisticsOutputs {
  RowStatisticsOutputs() = default;
  RowStatisticsOutputs(const Bound&, const RowStatistics&, const char* function);
  bool wanted() const { return any; }

  RowsOf entropy, effective_keys, max_weight, max_index, mean_distance, sink_share, visible_keys, top_weights,
      top_indices;
  int top = 0;
  bool any = false;
};

/// Writes the facts of a tile. m, l: over the keys alone; total_m, total_l: with the sink.
template <class T>
void write_statistics(const RowStatisticsOutputs&, const RowTile&, const RowSumsSoFar<T>&, const T* m, const T* l,
                      const T* total_m, const T* total_l);

}  // namespace qkv
