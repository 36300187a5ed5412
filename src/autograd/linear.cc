// Dense layers as operations.
#include <cstring>

#include "autograd/packs.h"
#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "core/elements.h"
#include "qkv/operations.h"

namespace qkv::nn {
namespace {

Update update(const Variable::Sink& sink) { return sink.add ? Update::kAdd : Update::kWrite; }

/// Those rows of a matrix or vector. Throws ShapeError.
Variable rows_of(Tape& tape, const char* name, const Rows& rows, int rank) {
  if (!rows.of) return {};
  const Variable all = tape.use(*rows.of);
  if (all.layout().rank != rank) shape_error("linear: {} is {}, expected {} axes", name, all.layout(), rank);
  const int64_t count = rows.count < 0 ? all.shape(0) - rows.first : rows.count;
  if (rows.first < 0 || count < 0 || rows.first + count > all.shape(0))
    shape_error("linear: {} {} has no rows {} to {}", name, all.layout(), rows.first, rows.first + count);
  Layout part = all.layout();
  part.shape[0] = count;
  return all.seen_as(part, rows.first * part.strides[0]);
}

/// A copy of a matrix, rounded to a 16-bit type.
Variable rounded_to(Tape& tape, DType type, const Variable& w) {
  const Variable copy = tape.make(w.layout(), type);
  const float* from = w.value().as<const float>().data;
  store(copy.to_write(), 0, 1, w.layout().size(), from);
  return copy;
}

template <class T>
const PackedMatrix<T>& packed(Tape& tape, const Rows& rows, const Variable& weight, DType storage, bool transposed) {
  if (!rows.of->packs) rows.of->packs = std::make_shared<detail::Packs>();
  auto& pack = rows.of->packs->find<T>({rows.first, weight.shape(0), storage, transposed});
  if (pack.is_made && pack.version == rows.of->version) return pack.matrix;
  const Variable narrow = size_of(storage) == 2 ? rounded_to(tape, storage, weight) : weight;
  View<const void> matrix = narrow.value();
  if (transposed) std::swap(matrix.shape[0], matrix.shape[1]), std::swap(matrix.strides[0], matrix.strides[1]);
  pack.matrix.pack(matrix, tape.call());
  pack.version = rows.of->version;
  pack.is_made = true;
  return pack.matrix;
}

/// f with a null pointer to the type that products of such tensors are computed in.
template <class F> void with_sums(DType type, const F& f) {
  if (type == DType::kFloat64) f(static_cast<double*>(nullptr));
  else f(static_cast<float*>(nullptr));
}

void check(const Variable& x, const Variable& weight, const Variable& bias) {
  if (sum_type(x.dtype()) != weight.dtype())
    dtype_error("linear: x is {} and weight {}, expected weights of {}; convert one of them", x.dtype(), weight.dtype(),
                sum_type(x.dtype()));
  const int rank = x.layout().rank;
  if (rank < 1 || x.shape(rank - 1) != weight.shape(1))
    shape_error("linear: x is {} and weight {}, expected {} columns of x", x.layout(), weight.layout(),
                weight.shape(1));
  if (bias && bias.shape(0) != weight.shape(0))
    shape_error("linear: bias is {} and weight {}, expected one number a row of weight", bias.layout(),
                weight.layout());
}

}  // namespace

Variable linear(Tape& tape, const Variable& x, const Rows& weight, const Rows& bias) {
  const Variable w = rows_of(tape, "weight", weight, 2), b = rows_of(tape, "bias", bias, 1);
  if (!w) option_error("linear: weight is absent; give a parameter {{out, in}}");
  check(x, w, b);
  const Layout in = matrix_layout("linear", x.layout());
  Layout sizes = x.layout();
  sizes.shape[size_t(sizes.rank) - 1] = w.shape(0);
  const Variable y = tape.make(sizes, x.dtype());
  const Layout out = matrix_layout("linear", y.layout());
  with_sums(x.dtype(), [&]<class T>(T*) {
    product<T>(rows(x.value(), in), packed<T>(tape, weight, w, x.dtype(), true), rows(y.to_write(), out),
               {.bias = b ? b.value() : View<const void>{}}, tape.call());
  });
  tape.record({y}, {x, w, b}, [&tape, x, y, w, b, weight, in, out] {
    const View<const void> dy = rows(y.gradient(), out);
    if (const auto sink = b.sink(); sink.view) column_sums(dy, sink.view, update(sink), tape.call());
    if (const auto sink = w.sink(); sink.view)
      product_transposed(dy, rows(x.value(), in), sink.view, update(sink), tape.call());
    if (const auto sink = x.sink(); sink.view) {
      with_sums(x.dtype(), [&]<class T>(T*) {
        product<T>(dy, packed<T>(tape, weight, w, x.dtype(), false), rows(sink.view, in), {.update = update(sink)},
                   tape.call());
      });
    }
  });
  return y;
}

Variable add(Tape& tape, const Variable& a, const Variable& b) {
  if (a.layout().rank != b.layout().rank || a.layout().shape != b.layout().shape)
    shape_error("add: a is {} and b {}, expected one shape", a.layout(), b.layout());
  if (a.dtype() != b.dtype()) dtype_error("add: a is {} and b {}, expected one type", a.dtype(), b.dtype());
  const Layout matrix = matrix_layout("add", a.layout());
  if (!is_contiguous(b.layout())) shape_error("add: b {} is not contiguous; copy it", b.layout());
  const Variable y = tape.make(a.layout(), a.dtype());
  sum_of(rows(a.value(), matrix), rows(b.value(), matrix), rows(y.to_write(), matrix), tape.call());
  tape.record({y}, {a, b}, [&tape, a, b, y] {
    const View<const void> dy = y.gradient();
    for (const Variable& x : {a, b}) {
      const Variable::Sink sink = x.sink();
      if (!sink.view) continue;
      if (sink.add) add_to(dy, sink.view, tape.call());
      else std::memcpy(sink.view.data, dy.data, size_t(dy.size()) * size_of(dy.dtype));
    }
  });
  return y;
}

}  // namespace qkv::nn
