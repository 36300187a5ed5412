// A matrix as coloured cells with labels on two sides: where everything stands. What a cell looks like is the caller's.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "qkv/terminal.h"

namespace qkv::cli {

/// Labels of the rows and columns of the matrix; empty: numbers only. Must be safe text (labels.h).
struct AxisLabels {
  std::vector<std::string> rows, columns;
};

/// How a matrix is put into the columns and lines that there are.
struct GridPlan {
  int cell_width = 1;                         ///< columns of a cell: 4 has a number in it, 2 and 1 have not
  bool half_blocks = false;                   ///< two rows of cells on a line
  int64_t row_factor = 1, column_factor = 1;  ///< pairs of the matrix that share a cell
  int label_width = 0;
  int64_t cell_rows = 0, cell_columns = 0;
};
/// `unit`: entries of the real matrix per row of the given one, where that is already a reduction; numbers count in them.
GridPlan plan_grid(int64_t rows, int64_t columns, const AxisLabels&, const Screen&, int64_t unit = 1);

/// What one cell shows. Without colours `text` (at most 3 columns) stands in wide cells, `symbol` in narrow ones.
struct CellLook {
  Rgb color{};
  std::string text{};
  char symbol = ' ';
};
using Paint = std::function<CellLook(int64_t cell_row, int64_t cell_column)>;

/// One line of text for each row of cells (or two), with labels at the left and on top. `unit` as above.
std::string render_grid(const GridPlan&, const AxisLabels&, const Paint&, const Screen&, int64_t unit = 1);

}  // namespace qkv::cli
