// Gradients of weights and biases: sums over the rows of a batch.
#include <algorithm>

#include "core/ceil_div.h"
#include "core/elements.h"
#include "kernels/kernels.h"
#include "nn/check_matrix.h"
#include "nn/parts.h"
#include "nn/product.h"
#include "nn/rows.h"

namespace qkv::nn {
namespace {

constexpr int64_t kChunk = 256;  // rows that are summed before dw is touched: part of the definition of the result
constexpr int64_t kPitch = kChunk + 8;  // panels that begin 4096 bytes apart would share lines of a cache
constexpr int64_t kBlockRows = 48, kBlockColumns = 256;  // of dw, that one item makes
constexpr int64_t kElementsOfChunks = int64_t{1} << 20;  // of x, packed at once
constexpr int64_t kColumnsOfSums = 64;

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

/// dw in blocks, each made by one item. x is packed before, by all threads, for as many chunks as fit a bound.
template <class T> class WeightGradient {
 public:
  WeightGradient(View<const void> dy, View<const void> x, View<void> dw, Into into, const Call& call)
      : dy_(dy), x_(x), dw_(dw), add_(into == Into::kAdd), call_(call), workspace_(call) {
    const int64_t n = dw.shape[0], k = dw.shape[1];
    panels_ = {kernels_.vector, k};
    block_rows_ = round_up(ceil_div(n, ceil_div(n, kBlockRows)), kernels_.slab);
    column_items_ = std::min(panels_.count(), ceil_div(k, kBlockColumns));
    chunk_size_ = panels_.padded() * kPitch;
    chunks_ = std::clamp<int64_t>(kElementsOfChunks / chunk_size_, 1, ceil_div(dy.shape[0], kChunk));
  }

  void run() {
    Workspace::Impl& w = workspace_.impl();
    T* packed = static_cast<T*>(w.call.reserve(size_t(chunks_ * chunk_size_) * sizeof(T)));
    Executor& executor = call_.executor ? *call_.executor : default_executor();
    const size_t bytes = std::max(scratch(nullptr).bytes, scratch_of_packing());
    w.prepare_leases(executor.concurrency(), bytes);
    for (int64_t first = 0; first < dy_.shape[0]; first += chunks_ * kChunk) {
      const int64_t chunks = std::min(chunks_, ceil_div(dy_.shape[0] - first, kChunk));
      parallel(call_, chunks * column_items_, [&](int64_t item) {
        const Workspace::Impl::Lease lease(w, bytes);
        const int64_t chunk = item / column_items_;
        pack(first + chunk * kChunk, columns_of(item), static_cast<T*>(lease.data()), packed + chunk * chunk_size_);
      });
      parallel(call_, ceil_div(dw_.shape[0], block_rows_) * column_items_, [&](int64_t item) {
        const Workspace::Impl::Lease lease(w, bytes);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          stop_point(call_.stop);
          multiply(first + chunk * kChunk, item / column_items_ * block_rows_, columns_of(item), scratch(lease.data()),
                   packed + chunk * chunk_size_);
        }
      });
    }
  }

 private:
  struct Scratch {
    T *slabs, *dy = nullptr, *dw = nullptr;
    size_t bytes = 0;
  };
  Scratch scratch(void* memory) const {
    Carver carver(memory);
    Scratch s{carver.take<T>(block_rows_ * kPitch)};
    if (dy_.dtype != kDType<T>) s.dy = carver.take<T>(block_rows_ * kChunk);
    if (dw_.dtype != kDType<T>) s.dw = carver.take<T>(block_rows_ * most_columns());
    s.bytes = carver.used();
    return s;
  }
  size_t scratch_of_packing() const { return x_.dtype == kDType<T> ? 0 : size_t(most_columns() * kChunk) * sizeof(T); }
  int64_t most_columns() const { return 3 * kernels_.vector * ceil_div(panels_.count(), column_items_); }
  /// The panels of an item.
  Part columns_of(int64_t item) const { return Part(panels_.count(), item % column_items_, column_items_); }
  int64_t depth_at(int64_t row) const { return std::min(kChunk, dy_.shape[0] - row); }

  /// Rows [row, row + kChunk) of x into these panels.
  void pack(int64_t row, const Part& panels, T* wide, T* packed) const {
    const int64_t first = panels_.first_column(panels.first), end = panels_.columns_before(panels.last);
    const Block<const T> in = read<T>(x_, row, first, int(depth_at(row)), end - first, wide);
    for (int64_t i = panels.first; i < panels.last;) {  // panels of equal width at once
      const int64_t column = panels_.first_column(i), width = panels_.first_column(i + 1) - column;
      int64_t next = i + 1;
      while (next < panels.last && panels_.first_column(next + 1) - panels_.first_column(next) == width) ++next;
      kernels_.pack_slabs(in.data + column - first, in.stride, depth_at(row), panels_.columns_before(next) - column,
                          width, packed + column * kPitch, kPitch);
      i = next;
    }
  }

  /// Adds the sums over rows [row, row + kChunk) to the block of dw that begins in row n.
  void multiply(int64_t row, int64_t n, const Part& panels, const Scratch& s, const T* packed) const {
    const int64_t first = panels_.first_column(panels.first), columns = panels_.columns_before(panels.last) - first;
    const bool add = add_ || row > 0;
    kernels::Product<T> p;
    p.rows = std::min(block_rows_, dw_.shape[0] - n);
    p.depth = depth_at(row);
    p.pitch = kPitch;
    const Block<const T> out = read<T>(dy_, row, n, int(p.depth), p.rows, s.dy);
    kernels_.pack_slabs(out.data, out.stride, p.depth, p.rows, kernels_.slab, s.slabs, kPitch);
    p.x = s.slabs;
    p.b = packed;
    p.panels = panels_;
    p.first = panels.first;
    p.last = panels.last;
    p.add = !s.dw && add;
    p.y = s.dw ? s.dw : static_cast<T*>(at(dw_, n, first));
    p.y_stride = s.dw ? columns : dw_.strides[0];
    kernels_.multiply_slabs(p);
    if (s.dw) update_rows(s.dw, columns, p.rows, columns, dw_, n, first, add);
  }

  View<const void> dy_, x_;
  View<void> dw_;
  bool add_;
  const Call& call_;
  WorkspaceOf workspace_;
  const kernels::ProductKernels<T>& kernels_ = kernels::product_kernels<T>();
  kernels::Panels panels_;
  int64_t block_rows_, column_items_;
  int64_t chunk_size_, chunks_;  // elements of a chunk of x, packed; how many chunks at once
};

template <class T>
void weight_gradient(View<const void> dy, View<const void> x, View<void> dw, Into into, const Call& call) {
  check_computes_in<T>("product_transposed", "dy", dy);
  check_computes_in<T>("product_transposed", "x", x);
  WeightGradient<T>(dy, x, dw, into, call).run();
}

template <class T> void bias_gradient(View<const void> dy, View<void> db, Into into, const Call& call) {
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
      const Block<const T> block = read<T>(dy, m, first, int(rows), columns, static_cast<T*>(memory));
      T sums[kColumnsOfSums];
      kernels.column_sums(block.data, block.stride, rows, columns, sums);
      update_rows(sums, 1, columns, 1, to, first, 0, into == Into::kAdd || m > 0);
    }
  });
}

/// What the sums of no rows leave.
void update_with_zeros(View<void> to, Into into) {
  if (into == Into::kAdd) return;
  const double zero = 0;
  for (int64_t r = 0; r < to.shape[0]; ++r)
    for (int64_t c = 0; c < to.shape[1]; ++c) update_rows(&zero, 1, 1, 1, to, r, c, false);
}

}  // namespace

void product_transposed(View<const void> dy, View<const void> x, View<void> dw, Into into, const Call& call) {
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
  if (dy.shape[0] == 0) return update_with_zeros(dw, into);
  if (dy.dtype == DType::kFloat64) weight_gradient<double>(dy, x, dw, into, call);
  else weight_gradient<float>(dy, x, dw, into, call);
}

void column_sums(View<const void> dy, View<void> db, Into into, const Call& call) {
  constexpr const char* kName = "column_sums";
  const std::array<int64_t, 2> rows{dy.shape[0], dy.shape[1]};
  check_shape(kName, "dy", dy, Layout(rows));
  check_shape(kName, "db", db, Layout(std::span(rows).last(1)));
  check_gradient_type(kName, "db", db);
  check_contiguous_columns(kName, "dy", dy);
  if (db.size() == 0) return;
  if (dy.shape[0] == 0) return update_with_zeros(db, into);
  if (dy.dtype == DType::kFloat64) bias_gradient<double>(dy, db, into, call);
  else bias_gradient<float>(dy, db, into, call);
}

}  // namespace qkv::nn
