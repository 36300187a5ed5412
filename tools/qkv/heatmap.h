// A matrix of weights as a heat map in text.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "qkv/grid.h"
#include "qkv/shade.h"

namespace qkv::cli {

struct Matrix {
  int64_t rows = 0, columns = 0;
  int64_t unit = 1;  ///< pairs of the real matrix along each side of an entry, where it is a reduction by maximum
  std::vector<float> values;      ///< {rows, columns}
  std::vector<uint8_t> hidden{};  ///< {rows, columns}, not 0 where a mask hides the pair; empty: nothing is known
  size_t at(int64_t row, int64_t column) const { return static_cast<size_t>(row * columns + column); }
  bool hides(size_t at) const { return !hidden.empty() && hidden[at] != 0; }
};

/// 0, or what lies below it, to the largest finite value that no mask hides.
Range range_of(const Matrix&);

/// One of ten characters that get darker on paper, brighter on a black screen. `place` from 0 to 1.
char ramp(double place);

/// "weight 0 (a bar of all shades) 0.84, linear scale".
enum class Cells : uint8_t { kNumbers, kShades };
std::string legend_of(const Shade&, const Screen&, Cells);

/// Fits the screen; where several pairs share a cell it shows the largest in size (a mean would lose single links, a NaN always
/// shows). Ends with a legend: range, scale, what a cell stands for.
std::string render_heatmap(const Matrix&, const AxisLabels&, Scale, const Screen&);

/// Whether x is larger in size than y, or the first NaN.
bool is_larger(float x, float y);

/// Blocks of row_factor x column_factor by what is largest in size; hidden where all of a block is.
Matrix reduce_by_maximum(const Matrix&, int64_t row_factor, int64_t column_factor);

}  // namespace qkv::cli
