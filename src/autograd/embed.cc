// Tables and dropout as operations.
#include "autograd/parameter_rows.h"
#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "nn/elementwise.h"
#include "nn/embedding.h"
#include "nn/product.h"
#include "qkv/operations.h"

namespace qkv::nn {

Variable dropout(Tape& tape, const Variable& x, double p) {
  if (!(p >= 0 && p <= 1)) option_error("dropout: p is {}, expected 0 to 1, the share that is dropped", p);
  if (!tape.training() || p == 0) return x;
  const Layout matrix = matrix_layout("dropout", x.layout());
  const DropoutOptions options{.probability = p, .seed = tape.next_seed()};
  const Variable y = tape.make(x.layout(), x.dtype());
  dropout(rows(x.value(), matrix), rows(y.to_write(), matrix), options, tape.call());
  tape.record({y}, {x}, [&tape, x, y, options, matrix] {
    into_sink(tape, x,
              [&](View<void> dx) { dropout(rows(y.gradient(), matrix), rows(dx, matrix), options, tape.call()); });
  });
  return y;
}

Variable embed(Tape& tape, View<const int32_t> ids, const Rows& table) {
  const Variable t = rows_of(tape, "embed", "table", table, 2);
  if (!t) option_error("embed: table is absent; give a parameter {{count, dim}}");
  if (ids.rank < 1 || ids.rank > 2 || !is_contiguous(ids))
    shape_error("embed: ids is {}, expected {{rows}} or {{B, L}}, contiguous", ids);
  Layout sizes(std::span<const int64_t>(ids.shape).first(size_t(ids.rank)));
  const int64_t flat_sizes[] = {ids.size()}, row_sizes[] = {ids.size(), t.shape(1)};
  int64_t all[3] = {ids.shape[0], ids.shape[1], t.shape(1)};
  if (ids.rank == 1) all[1] = t.shape(1);
  const Variable y = tape.make(Layout(std::span<const int64_t>(all).first(size_t(ids.rank) + 1)), tape.storage());
  const View<const int32_t> flat(ids.data, Layout(flat_sizes));
  const Layout matrix(row_sizes);
  embedding_forward(t.value(), flat, rows(y.to_write(), matrix), tape.call());
  tape.record({y}, {t}, [&tape, t, y, flat, matrix] {
    const Variable::Sink sink = t.sink();
    if (!sink.view) return;
    embedding_backward(flat, rows(y.gradient(), matrix), sink.view, {.into = into(sink)}, tape.call());
  });
  return y;
}

namespace {

Variable add_table(Tape& tape, const Variable& x, const Variable& t) {
  if (!t || x.layout().rank != 3 || t.layout().rank != 2 || t.shape(1) != x.shape(2) || t.shape(0) < x.shape(1))
    shape_error("add_rows: x is {} and the table {}, expected {{B, L, dim}} and {{L or more, dim}}", x.layout(),
                t ? t.layout() : Layout());
  if (!is_contiguous(x.layout())) shape_error("add_rows: x {} is not contiguous; copy it", x.layout());
  const int64_t entries = x.shape(0), sizes[] = {x.shape(1), x.shape(2)};
  const Layout matrix(sizes);
  const Variable used = t.seen_as(matrix);
  const auto entry = [matrix](const Variable& of, int64_t n) { return of.seen_as(matrix, n * matrix.size()); };
  const Variable y = tape.make(x.layout(), x.dtype());
  for (int64_t n = 0; n < entries; ++n) add(entry(x, n).value(), used.value(), entry(y, n).to_write(), tape.call());
  tape.record({y}, {x, t}, [&tape, x, y, used, entry, entries] {
    if (const Variable::Sink sink = x.sink(); sink.view) copy_or_add(y.gradient(), sink, tape.call());
    if (const Variable::Sink sink = used.sink(); sink.view) {
      for (int64_t n = 0; n < entries; ++n)
        copy_or_add(entry(y, n).gradient(), {sink.view, sink.add || n > 0}, tape.call());
    }
  });
  return y;
}

}  // namespace

Variable add_rows(Tape& tape, const Variable& x, const Rows& table) {
  return add_table(tape, x, rows_of(tape, "add_rows", "table", table, 2));
}
Variable add_rows(Tape& tape, const Variable& x, View<const void> table) {
  return add_table(tape, x, tape.constant(table));
}

}  // namespace qkv::nn
