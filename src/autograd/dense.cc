#include "autograd/dense.h"

#include <utility>

#include "autograd/packs.h"
#include "autograd/parameter_rows.h"
#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "core/elements.h"
#include "nn/rows.h"

namespace qkv::nn {
namespace {

/// A copy of a matrix, rounded to a 16-bit type.
Variable rounded_to(Tape& tape, DType type, const Variable& w) {
  const Variable copy = tape.make(w.layout(), type);
  store(copy.to_write(), 0, 1, w.layout().size(), w.value().as<const float>().data);
  return copy;
}

enum class Order : bool { kBackward, kForward };  // of W itself, for dx = dy W; of W^T, for y = x W^T

template <class T>
const PackedMatrix<T>& packed(Tape& tape, const Rows& rows, const Variable& weight, DType storage, Order order) {
  if (!rows.of->packs) rows.of->packs = std::make_shared<detail::Packs>();
  auto& pack = rows.of->packs->find<T>({rows.first, weight.shape(0), storage, order == Order::kForward});
  if (pack.is_made && pack.version == rows.of->version) return pack.matrix;
  const Variable narrow = size_of(storage) == 2 ? rounded_to(tape, storage, weight) : weight;
  View<const void> matrix = narrow.value();
  if (order == Order::kForward)
    std::swap(matrix.shape[0], matrix.shape[1]), std::swap(matrix.strides[0], matrix.strides[1]);
  pack.matrix.pack(matrix, tape.call());
  pack.version = rows.of->version;
  pack.is_made = true;
  return pack.matrix;
}

}  // namespace

Dense::Dense(Tape& tape, const char* function, const Rows& weight, const Rows& bias, DType storage)
    : tape_(&tape),
      rows_(weight),
      weight_(rows_of(tape, function, "weight", weight, 2)),
      bias_(rows_of(tape, function, "bias", bias, 1)),
      storage_(storage) {
  if (!weight_) option_error("{}: weight is absent; give a parameter {{out, in}}", function);
  if (sum_type(storage) != weight_.dtype())
    dtype_error("{}: x is {} and weight {}, expected weights of {}; convert one of them", function, storage,
                weight_.dtype(), sum_type(storage));
  if (bias_ && bias_.shape(0) != out())
    shape_error("{}: bias is {} and weight {}, expected one number a row of weight", function, bias_.layout(),
                weight_.layout());
}

void Dense::forward(View<const void> x, View<void> y) const {
  const Epilogue epilogue{.bias = bias_ ? bias_.value() : View<const void>{}};
  with_arithmetic(storage_, [&]<class T>(T*) {
    product<T>(x, packed<T>(*tape_, rows_, weight_, storage_, Order::kForward), y, epilogue, tape_->call());
  });
}

void Dense::backward(View<const void> x, View<const void> dy, const Sinks& to) const {
  if (to.bias.view) column_sums(dy, to.bias.view, into(to.bias), tape_->call());
  if (to.weight.view) product_transposed(dy, x, to.weight.view, into(to.weight), tape_->call());
  if (!to.x.view) return;
  with_arithmetic(storage_, [&]<class T>(T*) {
    product<T>(dy, packed<T>(*tape_, rows_, weight_, storage_, Order::kBackward), to.x.view, {.into = into(to.x)},
               tape_->call());
  });
}

}  // namespace qkv::nn
