// Losses as operations: of one element, in double.
#include "nn/loss.h"

#include <algorithm>

#include "autograd/dense.h"
#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "qkv/operations.h"

namespace qkv::nn {
namespace {

Variable make_loss(Tape& tape, double value) {
  const int64_t one[] = {1};
  const Variable loss = tape.make(Layout(one), DType::kFloat64);
  *loss.to_write().as<double>().data = value;
  return loss;
}
double upstream_of(const Variable& loss) { return *loss.gradient().as<const double>().data; }

/// Targets {B, L} as {rows}. Throws ShapeError.
View<const int32_t> flat(const char* function, const View<const int32_t>& targets, int64_t expected) {
  if (!is_contiguous(targets) || targets.size() != expected)
    shape_error("{}: targets is {}, expected {} numbers, contiguous, one a row", function, targets, expected);
  const int64_t sizes[] = {targets.size()};
  return {targets.data, Layout(sizes)};
}

CrossEntropyOptions options_of(const TargetOptions& o) {
  return {.label_smoothing = o.label_smoothing, .ignored = o.ignored};
}

}  // namespace

Variable cross_entropy(Tape& tape, const Variable& logits, View<const int32_t> targets, const TargetOptions& options) {
  const Layout matrix = matrix_layout("cross_entropy", logits.layout());
  const CrossEntropyInputs in{rows(logits.value(), matrix), flat("cross_entropy", targets, matrix.shape[0])};
  CrossEntropyOptions o = options_of(options);
  if (!tape.is_recording()) return make_loss(tape, cross_entropy_forward(in, {}, o, tape.call()).value);
  const Layout row_layout(std::span<const int64_t>(matrix.shape).first(1));
  const Variable max = tape.make(row_layout, sum_type(logits.dtype())),
                 sum = tape.make(row_layout, sum_type(logits.dtype()));
  const Variable loss =
      make_loss(tape, cross_entropy_forward(in, {max.to_write(), sum.to_write()}, o, tape.call()).value);
  tape.record({loss}, {logits}, [&tape, logits, loss, in, max, sum, o, matrix]() mutable {
    o.upstream = upstream_of(loss);
    into_sink(tape, logits, [&](View<void> dlogits) {
      cross_entropy_backward(in, {max.value(), sum.value()}, rows(dlogits, matrix), o, tape.call());
    });
  });
  return loss;
}

// ---- of logits that are never all there ----

namespace {

/// The last product of a model and its loss, some rows at a time.
struct LastLayer {
  Tape* tape;
  Variable x;
  Dense dense;
  View<const int32_t> targets;
  Layout matrix;  ///< {rows, in}

  static constexpr int64_t kMostLogits = int64_t{1} << 22;  // 16 MB of float32
  View<const void> x_rows(int64_t first, int64_t last) const {
    const int64_t sizes[] = {last - first, matrix.shape[1]};
    return x.seen_as(Layout(sizes), first * matrix.shape[1]).value();
  }
  /// use(first, last, dlogits) gets the gradients of rows [first, last) of logits. Returns the loss.
  template <class Use> double run(const CrossEntropyOptions& options, const Use& use) const {
    const int64_t most = std::clamp<int64_t>(kMostLogits / dense.out(), 1, std::max<int64_t>(matrix.shape[0], 1));
    const int64_t sizes[] = {most, dense.out()};
    const Variable logits = tape->make(Layout(sizes), sum_type(x.dtype()));
    const auto multiply = [&](int64_t first, int64_t last, View<void> to) { dense.forward(x_rows(first, last), to); };
    return linear_cross_entropy(LinearCrossEntropy{targets, logits.to_write()}, options, multiply, use, tape->call())
        .value;
  }
  void backward(const CrossEntropyOptions& options) const {
    const Dense::Sinks sinks = dense.sinks(x);
    const auto use = [&](int64_t first, int64_t last, View<const void> dlogits) {
      Dense::Sinks part = sinks;
      part.weight.add = sinks.weight.add || first > 0, part.bias.add = sinks.bias.add || first > 0;
      if (sinks.x.view) part.x.view = rows_from(rows(sinks.x.view, matrix), first, last);
      dense.backward(x_rows(first, last), dlogits, part);
    };
    run(options, use);
  }
  static View<void> rows_from(View<void> v, int64_t first, int64_t last) {
    v.data = static_cast<char*>(v.data) + first * v.strides[0] * int64_t(size_of(v.dtype));
    v.shape[0] = last - first;
    return v;
  }
};

}  // namespace

Variable linear_cross_entropy(Tape& tape, const Variable& x, const Rows& weight, const Rows& bias,
                              View<const int32_t> targets, const TargetOptions& options) {
  const Layout matrix = matrix_layout("linear_cross_entropy", x.layout());
  const LastLayer last{&tape, x, Dense(tape, "linear_cross_entropy", weight, bias, x.dtype()),
                       flat("linear_cross_entropy", targets, matrix.shape[0]), matrix};
  if (matrix.shape[1] != last.dense.in())
    shape_error("linear_cross_entropy: x is {} and weight {}, expected {} columns of x", x.layout(),
                last.dense.weight().layout(), last.dense.in());
  CrossEntropyOptions o = options_of(options);
  const Variable loss = make_loss(tape, last.run(o, [](int64_t, int64_t, View<const void>) {}));
  tape.record({loss}, {x, last.dense.weight(), last.dense.bias()}, [last, loss, o]() mutable {
    o.upstream = upstream_of(loss);
    last.backward(o);
  });
  return loss;
}

// ---- differences ----

namespace {

template <class F>
double error_of(const char* function, Tape& tape, const Variable& x, View<const void> y, View<void> dx, double upstream,
                const F& f) {
  const Layout matrix = matrix_layout(function, x.layout());
  if (!is_contiguous(y) || y.size() != x.layout().size())
    shape_error("{}: x is {} and y {}, expected one shape, contiguous", function, x.layout(), y);
  return f(rows(x.value(), matrix), rows(y, matrix), rows_if(dx, matrix), {.upstream = upstream}, tape.call());
}

/// f = mean_squared_error or mean_absolute_error.
template <class F> Variable error_loss(const char* function, Tape& tape, const Variable& x, View<const void> y, F f) {
  const Variable loss = make_loss(tape, error_of(function, tape, x, y, {}, 1, f));
  tape.record({loss}, {x}, [&tape, function, x, y, loss, f] {
    into_sink(tape, x, [&](View<void> dx) { error_of(function, tape, x, y, dx, upstream_of(loss), f); });
  });
  return loss;
}

using Error = double (*)(View<const void>, View<const void>, View<void>, const ErrorOptions&, const Call&);

}  // namespace

Variable mean_squared_error(Tape& tape, const Variable& x, View<const void> y) {
  return error_loss("mean_squared_error", tape, x, y, Error(mean_squared_error));
}
Variable mean_absolute_error(Tape& tape, const Variable& x, View<const void> y) {
  return error_loss("mean_absolute_error", tape, x, y, Error(mean_absolute_error));
}

}  // namespace qkv::nn
