// Gradients of weights and biases: sums over the rows of a batch.
#include <algorithm>

#include "core/ceil_div.h"
#include "core/elements.h"
#include "kernels/kernels.h"
#include "nn/check_matrix.h"
#include "nn/parts.h"
#include "nn/product.h"

namespace qkv::nn {
namespace {

constexpr int64_t kChunk = 256;  // rows that are summed before dw is touched: part of the definition of the result
constexpr int64_t kBlockRows = 96, kBlockColumns = 128;  // of dw, that one item makes
constexpr int64_t kWorkOfAnItem = int64_t{1} << 21;      // multiply-adds, some 40 us
constexpr int64_t kLeastRows = 32;                       // a block of fewer spends its time on packing x
constexpr int64_t kColumnsOfSums = 64;

/// T numbers of a block, those of the tensor itself or widened into scratch {rows, columns}.
template <class T> struct Block {
  const T* data;
  int64_t stride;
  Block(View<const void> v, int64_t row, int64_t column, int rows, int columns, T* scratch) {
    const void* from = at(v, row, column);
    data = scratch ? scratch : static_cast<const T*>(from);
    stride = scratch ? columns : v.strides[0];
    if (scratch) kernels::row_kernels<T>().load(from, v.dtype, v.strides[0], 1, rows, columns, scratch, columns);
  }
};

/// to {rows, columns} (+)= from, in the type of `to`.
template <class T>
void update_rows(const T* from, int64_t stride, int64_t rows, int64_t columns, const View<void>& to, int64_t row,
                 int64_t column, bool add) {
  with_floating(to.dtype, [&]<class E>(E*) {
    if constexpr (sizeof(E) >= 4) {
      for (int64_t r = 0; r < rows; ++r) {
        E* line = static_cast<E*>(at(to, row + r, column));
        const T* sums = from + r * stride;
        for (int64_t c = 0; c < columns; ++c)
          line[c] = add ? static_cast<E>(line[c] + sums[c]) : static_cast<E>(sums[c]);
      }
    }
  });
}

/// dw in blocks, each made by one item from all rows of dy and x.
template <class T> struct WeightGradient {
  View<const void> dy, x;
  View<void> dw;
  bool add;
  const kernels::ProductKernels<T>& kernels = kernels::product_kernels<T>();
  int64_t row_items, column_items;

  WeightGradient(View<const void> from_dy, View<const void> from_x, View<void> to, Update update)
      : dy(from_dy), x(from_x), dw(to), add(update == Update::kAdd) {
    const int64_t n = dw.shape[0], k = dw.shape[1], work = n * k * std::max<int64_t>(dy.shape[0], 1);
    column_items = ceil_div(k, kBlockColumns);
    const int64_t by_work = std::min(work / kWorkOfAnItem / column_items, n / kLeastRows);
    row_items = std::max({ceil_div(n, kBlockRows), by_work, int64_t{1}});
  }

  struct Scratch {
    T *slabs, *panels, *dy = nullptr, *x = nullptr, *dw = nullptr;
    size_t bytes = 0;
  };
  Scratch scratch(void* memory) const {
    Carver carver(memory);
    const int64_t rows = ceil_div(dw.shape[0], row_items), columns = ceil_div(dw.shape[1], column_items);
    Scratch s{carver.take<T>(round_up(rows, kernels.slab) * kChunk),
              carver.take<T>(round_up(columns, kernels.vector) * kChunk)};
    if (dy.dtype != kDType<T>) s.dy = carver.take<T>(rows * kChunk);
    if (x.dtype != kDType<T>) s.x = carver.take<T>(columns * kChunk);
    if (dw.dtype != kDType<T>) s.dw = carver.take<T>(rows * columns);
    s.bytes = carver.used();
    return s;
  }

  void item(int64_t number, void* memory, const std::stop_token& stop) const {
    const Part rows(dw.shape[0], number / column_items, row_items);
    const Part columns(dw.shape[1], number % column_items, column_items);
    const Scratch s = scratch(memory);
    for (int64_t m = 0; m < dy.shape[0]; m += kChunk) {
      stop_point(stop);
      kernels::Product<T> p;
      p.rows = rows.size();
      p.depth = std::min(kChunk, dy.shape[0] - m);
      p.panels = {kernels.vector, columns.size()};
      p.last = p.panels.count();
      p.add = !s.dw && (add || m > 0);
      p.y = s.dw ? s.dw : static_cast<T*>(at(dw, rows.first, columns.first));
      p.y_stride = s.dw ? columns.size() : dw.strides[0];
      pack(p, s, m, rows, columns);
      kernels.multiply_slabs(p);
      if (s.dw) update_rows(s.dw, p.y_stride, p.rows, columns.size(), dw, rows.first, columns.first, add || m > 0);
    }
  }

 private:
  void pack(kernels::Product<T>& p, const Scratch& s, int64_t m, const Part& rows, const Part& columns) const {
    const Block<T> out(dy, m, rows.first, int(p.depth), int(rows.size()), s.dy);
    kernels.pack_slabs(out.data, out.stride, p.depth, rows.size(), kernels.slab, s.slabs);
    const Block<T> in(x, m, columns.first, int(p.depth), int(columns.size()), s.x);
    for (int64_t i = 0; i < p.last;) {  // panels of equal width at once
      const int64_t first = p.panels.first_column(i), width = p.panels.first_column(i + 1) - first;
      int64_t end = i + 1;
      while (end < p.last && p.panels.first_column(end + 1) - p.panels.first_column(end) == width) ++end;
      kernels.pack_slabs(in.data + first, in.stride, p.depth, p.panels.columns_before(end) - first, width,
                         s.panels + first * p.depth);
      i = end;
    }
    p.x = s.slabs;
    p.b = s.panels;
  }
};

template <class T>
void weight_gradient(View<const void> dy, View<const void> x, View<void> dw, Update update, const Call& call) {
  check_computes_in<T>("product_transposed", "dy", dy);
  check_computes_in<T>("product_transposed", "x", x);
  const WeightGradient<T> gradient(dy, x, dw, update);
  parallel_with_scratch(call, gradient.row_items * gradient.column_items, gradient.scratch(nullptr).bytes,
                        [&](int64_t item, void* memory) { gradient.item(item, memory, call.stop); });
}

template <class T> void bias_gradient(View<const void> dy, View<void> db, Update update, const Call& call) {
  check_computes_in<T>("column_sums", "dy", dy);
  const kernels::ProductKernels<T>& kernels = kernels::product_kernels<T>();
  const int64_t n = db.shape[0], items = ceil_div(n, kColumnsOfSums);
  const size_t bytes = dy.dtype != kDType<T> ? size_t(kChunk * kColumnsOfSums) * sizeof(T) : 0;
  parallel_with_scratch(call, items, bytes, [&](int64_t item, void* memory) {
    const int64_t first = item * kColumnsOfSums, columns = std::min(kColumnsOfSums, n - first);
    View<void> to = db;  // as a matrix of one column
    for (int64_t m = 0; m < dy.shape[0]; m += kChunk) {
      stop_point(call.stop);
      const int64_t rows = std::min(kChunk, dy.shape[0] - m);
      const Block<T> block(dy, m, first, int(rows), int(columns), static_cast<T*>(memory));
      T sums[kColumnsOfSums];
      kernels.column_sums(block.data, block.stride, rows, columns, sums);
      update_rows(sums, 1, columns, 1, to, first, 0, update == Update::kAdd || m > 0);
    }
  });
}

/// What the sums of no rows leave.
void update_with_zeros(View<void> to, Update update) {
  if (update == Update::kAdd) return;
  const double zero = 0;
  for (int64_t r = 0; r < to.shape[0]; ++r)
    for (int64_t c = 0; c < to.shape[1]; ++c) update_rows(&zero, 1, 1, 1, to, r, c, false);
}

}  // namespace

void product_transposed(View<const void> dy, View<const void> x, View<void> dw, Update update, const Call& call) {
  constexpr const char* kName = "product_transposed";
  const std::array<int64_t, 2> out{dy.shape[0], dy.shape[1]}, in{dy.shape[0], x.shape[1]};
  const std::array<int64_t, 2> weights{dy.shape[1], x.shape[1]};
  check_shape(kName, "dy", dy, Layout(out));
  check_shape(kName, "x", x, Layout(in));
  check_shape(kName, "dw", dw, Layout(weights));
  check_gradient_type(kName, "dw", dw);
  check_contiguous_columns(kName, "dy", dy);
  check_contiguous_columns(kName, "x", x);
  check_contiguous_columns(kName, "dw", dw);
  if (dw.size() == 0) return;
  if (dy.shape[0] == 0) return update_with_zeros(dw, update);
  if (dy.dtype == DType::kFloat64) weight_gradient<double>(dy, x, dw, update, call);
  else weight_gradient<float>(dy, x, dw, update, call);
}

void column_sums(View<const void> dy, View<void> db, Update update, const Call& call) {
  constexpr const char* kName = "column_sums";
  const std::array<int64_t, 2> rows{dy.shape[0], dy.shape[1]};
  check_shape(kName, "dy", dy, Layout(rows));
  check_shape(kName, "db", db, Layout(std::span(rows).last(1)));
  check_gradient_type(kName, "db", db);
  check_contiguous_columns(kName, "dy", dy);
  if (db.size() == 0) return;
  if (dy.shape[0] == 0) return update_with_zeros(db, update);
  if (dy.dtype == DType::kFloat64) bias_gradient<double>(dy, db, update, call);
  else bias_gradient<float>(dy, db, update, call);
}

}  // namespace qkv::nn
