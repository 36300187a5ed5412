// The weights of a layer for a page: row by row, exactly; which keys a row sees where that is a range; as pictures.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "qkv/layer.h"

namespace qkv::cli {

/// One sequence of a layer: a batch entry, or a sequence of a packed batch with its own lengths.
struct Sequence {
  int64_t batch = 0, queries = 0, keys = 0;
};
Sequence sequence_of(const Layer&, int64_t batch);

/// One row of weights with what is hidden in it; both as long as the sequence has keys. `hidden` is empty where nothing is
/// known about masks, that is for weights from a file.
struct WeightRow {
  int64_t batch, head, row;
  std::span<const float> weights;
  std::span<const uint8_t> hidden;
};
/// Every row of every sequence. Of what would need too much memory, some rows of all heads at a time.
void for_each_row(const Layer&, const std::function<void(const WeightRow&)>& see);

/// exp(scale q k - lse) over one range of keys a row is the whole attention: its patterns are ranges, the same for all
/// heads, and there is no modifier. (A sink is in the lse.)
bool is_plain(const Problem&);
/// The keys that row `row` of a sequence sees, as far as ranges without tensors know.
KeyRange range_of(const Problem&, const Sequence&, int64_t row);

/// Weights of chosen rows of one sequence, {heads, rows, keys}.
std::vector<float> weights_of_rows(const Problem&, const Sequence&, std::span<const int32_t> rows, Progress&);

/// exp(s - lse) is a weight. In double, since float32 is too coarse where scores are large. -inf: the row sees nothing.
std::vector<double> log_sums(const Problem&, const Sequence&, int64_t head, const RowSums&);

/// Side of a cell of an overview with at most `most_cells` rows and columns; at least 4, since the pairs themselves are in
/// the page too.
int overview_cell(int64_t queries, int64_t keys, int most_cells);

/// Largest and mean weight of cells of `cell` x `cell` pairs, of all sequences and heads, {B, H, rows, columns}.
struct Overview {
  int cell = 1;
  Array largest, mean, row_max, row_sum;
  RowSums sums() const { return {row_max.view(), row_sum.view()}; }
};
Overview overview_of(const Problem&, int most_cells, Progress&);

}  // namespace qkv::cli
