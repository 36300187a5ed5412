#include "nn/product.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "kernels/kernels.h"
#include "nn/check_matrix.h"
#include "nn/parts.h"

namespace qkv::nn {
namespace {

using kernels::Panels;

/// Multiply-adds of a work item, some 20 us. To read a row of a matrix takes as long as to multiply eight rows by it.
constexpr int64_t kWorkOfAnItem = int64_t{1} << 20, kRowsOfARead = 8;
constexpr int64_t kMostItems = 256;
constexpr int64_t kRowStep = 24;              // full tiles of every instruction set
constexpr int64_t kElementsOfRows = 1 << 16;  // of x: they stay in a cache of the second level while panels pass

/// Items are row_items times panel_items; cut by shapes only.
struct Cut {
  int64_t rows, row_items, panel_items;
  int64_t most_columns = 0;  // of an item, with padding

  Cut(int64_t all_rows, int64_t depth, const Panels& panels) {
    depth = std::max<int64_t>(depth, 1);
    const int64_t work = std::max(all_rows, kRowsOfARead) * depth * panels.columns;
    const int64_t items = std::clamp<int64_t>(work / kWorkOfAnItem, 1, kMostItems);
    const int64_t by_cache = ceil_div(all_rows, std::max(2 * kRowStep, kElementsOfRows / depth));
    const int64_t by_work = std::min(items, ceil_div(all_rows, 2 * kRowStep));
    rows = round_up(ceil_div(all_rows, std::max(by_cache, by_work)), kRowStep);
    row_items = ceil_div(all_rows, rows);
    panel_items = std::clamp<int64_t>(ceil_div(items, row_items), 1, panels.count());
    for (int64_t i = 0; i < panel_items; ++i) {
      const Part part(panels.count(), i, panel_items);
      most_columns = std::max(most_columns, panels.first_column(part.last) - panels.first_column(part.first));
    }
  }
};

template <class T> struct ProductCall {
  View<const void> x;
  const PackedMatrix<T>& b;
  View<void> y;
  const Epilogue& epilogue;
  Cut cut;
  const kernels::RowKernels<T>& convert = kernels::row_kernels<T>();

  /// T copies of what is stored otherwise; null where the tensor itself will do.
  struct Scratch {
    T *x = nullptr, *y = nullptr, *bias = nullptr;
    size_t bytes = 0;
  };
  Scratch scratch(void* memory) const {
    Carver carver(memory);
    Scratch s;
    if (x.dtype != kDType<T>) s.x = carver.take<T>(cut.rows * x.shape[1]);
    if (y.dtype != kDType<T>) s.y = carver.take<T>(cut.rows * cut.most_columns);
    const View<const void>& bias = epilogue.bias;
    if (bias && (bias.dtype != kDType<T> || bias.strides[0] != 1)) s.bias = carver.take<T>(cut.most_columns);
    s.bytes = carver.used();
    return s;
  }

  void item(int64_t number, void* memory) const {
    const Panels& panels = b.panels();
    const Part part(panels.count(), number % cut.panel_items, cut.panel_items);
    const int64_t first_row = number / cut.panel_items * cut.rows, first_column = panels.first_column(part.first);
    const int rows = int(std::min(cut.rows, x.shape[0] - first_row));
    const int columns = int(panels.columns_before(part.last) - first_column);
    const Scratch s = scratch(memory);

    kernels::Product<T> p;
    p.rows = rows;
    p.depth = x.shape[1];
    p.b = b.data();
    p.pitch = p.depth;
    p.panels = panels;
    p.first = part.first;
    p.last = part.last;
    p.add = epilogue.into == Into::kAdd;
    take_x(p, s, first_row);
    if (epilogue.bias) take_bias(p, s, first_column, columns);
    void* out = at(y, first_row, first_column);
    p.y = s.y ? s.y : static_cast<T*>(out);
    p.y_stride = s.y ? cut.most_columns : y.strides[0];
    if (s.y && p.add) convert.load(out, y.dtype, y.strides[0], 1, rows, columns, s.y, cut.most_columns);
    b.kernels().multiply(p);
    if (s.y) convert.store(s.y, cut.most_columns, rows, columns, out, y.dtype, y.strides[0], 1);
  }

 private:
  void take_x(kernels::Product<T>& p, const Scratch& s, int64_t first_row) const {
    const void* from = at(x, first_row);
    p.x = s.x ? s.x : static_cast<const T*>(from);
    p.x_stride = s.x ? p.depth : x.strides[0];
    if (s.x) convert.load(from, x.dtype, x.strides[0], 1, int(p.rows), int(p.depth), s.x, p.depth);
  }
  void take_bias(kernels::Product<T>& p, const Scratch& s, int64_t first_column, int columns) const {
    const View<const void>& bias = epilogue.bias;
    const void* from = at(bias, first_column);
    p.bias = s.bias ? s.bias : static_cast<const T*>(from);
    if (s.bias) convert.load(from, bias.dtype, 0, bias.strides[0], 1, columns, s.bias, columns);
  }
};

template <class T> void check(View<const void> x, const PackedMatrix<T>& b, View<void> y, const Epilogue& epilogue) {
  constexpr const char* kName = "product";
  const std::array<int64_t, 2> rows{x.shape[0], b.rows()}, result{x.shape[0], b.columns()};
  if (x.rank != 2 || x.shape[1] != b.rows())
    shape_error(
        "{}: x has shape {}, expected {{rows, {}}} for a packed matrix {{{}, {}}}; pass its rows, or the matrix for {}",
        kName, x, b.rows(), b.rows(), b.columns(), x);
  check_shape(kName, "x", x, Layout(rows));
  check_shape(kName, "y", y, Layout(result));
  check_computes_in<T>(kName, "x", x);
  check_computes_in<T>(kName, "y", y);
  check_contiguous_columns(kName, "x", x);
  check_contiguous_columns(kName, "y", y);
  if (!epilogue.bias) return;
  check_shape(kName, "bias", epilogue.bias, Layout(std::span(result).last(1)));
  check_computes_in<T>(kName, "bias", epilogue.bias);
}

}  // namespace

template <class T>
void product(View<const void> x, const PackedMatrix<T>& b, View<void> y, const Epilogue& epilogue, const Call& call) {
  check(x, b, y, epilogue);
  if (y.size() == 0) return;
  const ProductCall<T> p{x, b, y, epilogue, Cut(x.shape[0], x.shape[1], b.panels())};
  parallel_with_scratch(call, p.cut.row_items * p.cut.panel_items, p.scratch(nullptr).bytes,
                        [&](int64_t item, void* memory) { p.item(item, memory); });
}

template void product(View<const void>, const PackedMatrix<float>&, View<void>, const Epilogue&, const Call&);
template void product(View<const void>, const PackedMatrix<double>&, View<void>, const Epilogue&, const Call&);

}  // namespace qkv::nn
