#include "nn/embedding.h"

#include <cstring>

#include "kernels/elementwise.h"
#include "nn/check.h"

namespace qkv::nn {
namespace {

void check_ids(const char* function, const View<const int32_t>& ids, int64_t rows, int64_t vocabulary) {
  if (ids.rank != 1 || ids.shape[0] != rows)
    shape_error("{}: ids have shape {}, expected {{{}}}, one a row; pass as many", function, ids, rows);
  check::data(function, "ids", ids);
  if (rows > INT32_MAX) shape_error("{}: {} rows, expected at most 2^31 - 1; call it in parts", function, rows);
  for (int64_t r = 0; r < rows; ++r) {
    if (ids(r) < 0 || ids(r) >= vocabulary)
      option_error("{}: ids[{}] is {}, expected 0 to {}, the rows of the table; correct it", function, r, ids(r),
                   vocabulary - 1);
  }
}

/// Row numbers sorted by id, those of one id in their order: the id above, the row below.
uint64_t* sorted_rows(const View<const int32_t>& ids, uint64_t* to) {
  for (int64_t r = 0; r < ids.shape[0]; ++r) to[r] = uint64_t(uint32_t(ids(r))) << 32 | uint32_t(r);
  std::sort(to, to + ids.shape[0]);
  return to;
}
int64_t id_of(uint64_t entry) { return int64_t(entry >> 32); }
int64_t row_of(uint64_t entry) { return int64_t(entry & 0xFFFFFFFF); }

/// dtable[id] += the rows of [first, last), which are all rows of one id.   scratch {2, dim}
template <class T>
void add_run(const uint64_t* first, const uint64_t* last, const View<const void>& dout, const View<void>& dtable,
             T* scratch) {
  const int64_t id = id_of(*first), dim = dout.shape[1];
  const Block<T> to = place(dtable, id, 0, dim, scratch);
  read(View<const void>(dtable), id, 0, 1, dim, scratch);  // what it holds, if it is of another type
  for (; first != last; ++first) {
    const T* row = read(dout, row_of(*first), 0, 1, dim, scratch + dim).data;
    kernels::elementwise_kernels<T>().add(to.data, row, dim, to.data);
  }
  finish(dtable, id, 0, 1, dim, to);
}

template <class T>
void backward(const View<const int32_t>& ids, const View<const void>& dout, const View<void>& dtable, int32_t padding,
              const Call& call) {
  const int64_t rows = ids.shape[0], dim = dout.shape[1];
  WorkspaceOf workspace(call);
  const uint64_t* entries =
      sorted_rows(ids, static_cast<uint64_t*>(workspace.impl().call.reserve(size_t(rows) * sizeof(uint64_t))));
  const int64_t of_an_item = ceil_div(kElementsOfAnItem, std::max<int64_t>(1, dim)), items = ceil_div(rows, of_an_item);
  const size_t bytes = 2 * size_t(dim) * sizeof(T);
  workspace.impl().prepare_leases(at_once(call, items), bytes);
  // An item has the runs of equal ids that begin in its part.
  parallel(call, items, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace.impl(), bytes);
    int64_t r = item * of_an_item;
    while (r > 0 && r < rows && id_of(entries[r]) == id_of(entries[r - 1])) ++r;
    while (r < std::min(rows, (item + 1) * of_an_item)) {
      const int64_t first = r;
      while (r < rows && id_of(entries[r]) == id_of(entries[first])) ++r;
      if (id_of(entries[first]) != padding)
        add_run(entries + first, entries + r, dout, dtable, static_cast<T*>(lease.data()));
    }
  });
}

void fill_with_zeros(const View<void>& v, const Call& call) {
  parallel(call, v.shape[0],
           [&](int64_t row) { std::memset(at(v, row, 0), 0, size_t(v.shape[1]) * size_of(v.dtype)); });
}

}  // namespace

void embedding_forward(View<const void> table, View<const int32_t> ids, View<void> out, const Call& call) {
  const check::Caller caller = check::matrix("embedding_forward", "table", table);
  const int64_t rows = ids.rank == 1 ? ids.shape[0] : 0, dim = table.shape[1];
  check_ids("embedding_forward", ids, rows, table.shape[0]);
  check::matrix(caller, "out", out, rows, dim);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    for_pieces(call, Grid(out), [&](int64_t row, int64_t column, int64_t n) {
      const void* from = at(table, ids(row), column);
      if (table.dtype == out.dtype) {
        std::memcpy(at(out, row, column), from, size_t(n) * size_of(out.dtype));
        return;
      }
      T wide[kPiece];
      const Block<const T> numbers = read(table, ids(row), column, 1, n, wide);
      kernels::row_kernels<T>().store(numbers.data, 0, 1, int(n), at(out, row, column), out.dtype, 0, 1);
    });
  });
}

void embedding_backward(View<const int32_t> ids, View<const void> dout, View<void> dtable,
                        const EmbeddingOptions& options, const Call& call) {
  const check::Caller caller = check::matrix("embedding_backward", "dout", dout);
  check::matrix(caller, "dtable", dtable, dtable.shape[0], dout.shape[1]);
  check_ids("embedding_backward", ids, dout.shape[0], dtable.shape[0]);
  if (options.into == Into::kWrite) fill_with_zeros(dtable, call);
  if (dout.size() == 0) return;
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) { backward<T>(ids, dout, dtable, options.padding, call); });
}

}  // namespace qkv::nn
