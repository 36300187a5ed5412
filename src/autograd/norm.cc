// Norms as operations.
#include "nn/norm.h"

#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "nn/row_runs.h"
#include "qkv/operations.h"

namespace qkv::nn {
namespace {

Variable use(Tape& tape, Parameter* p) { return p ? tape.use(*p) : Variable{}; }
View<const void> value_of(const Variable& x) { return x ? x.value() : View<const void>{}; }

/// There is one flag for the gradients of both parameters: where one of them is added to, a new other one begins with zeros.
NormGradients targets_of(const Variable& x, const Layout& matrix, const Variable& gain, const Variable& bias) {
  NormGradients to;
  const Variable::Sink sink = x.sink(), of_gain = gain.sink(), of_bias = bias.sink();
  to.dx = rows_if(sink.view, matrix), to.dx_into = into(sink);
  to.dgain = of_gain.view, to.dbias = of_bias.view;
  if (!of_gain.add && !of_bias.add) return to;
  to.parameters_into = Into::kAdd;
  for (const Variable::Sink& fresh : {of_gain, of_bias})
    if (fresh.view && !fresh.add) add_nothing(fresh.view, Into::kWrite);
  return to;
}

}  // namespace

Variable layer_norm(Tape& tape, const Variable& x, Parameter* gain, Parameter* bias, double epsilon) {
  const Layout matrix = matrix_layout("layer_norm", x.layout());
  const Variable y = tape.make(x.layout(), x.dtype()), g = use(tape, gain), b = use(tape, bias);
  const NormInputs in{rows(x.value(), matrix), value_of(g), value_of(b)};
  if (!tape.is_recording()) {
    layer_norm_forward(in, {rows(y.to_write(), matrix)}, epsilon, tape.call());
    return y;
  }
  const Layout row_layout(std::span<const int64_t>(matrix.shape).first(1));
  const Variable mean = tape.make(row_layout, sum_type(x.dtype())), rstd = tape.make(row_layout, sum_type(x.dtype()));
  layer_norm_forward(in, {rows(y.to_write(), matrix), mean.to_write(), rstd.to_write()}, epsilon, tape.call());
  tape.record({y}, {x, g, b}, [&tape, x, y, g, b, mean, rstd, matrix] {
    layer_norm_backward({rows(x.value(), matrix), value_of(g), mean.value(), rstd.value(), rows(y.gradient(), matrix)},
                        targets_of(x, matrix, g, b), tape.call());
  });
  return y;
}

Variable rms_norm(Tape& tape, const Variable& x, Parameter* gain, double epsilon) {
  const Layout matrix = matrix_layout("rms_norm", x.layout());
  const Variable y = tape.make(x.layout(), x.dtype()), g = use(tape, gain);
  const NormInputs in{rows(x.value(), matrix), value_of(g)};
  if (!tape.is_recording()) {
    rms_norm_forward(in, {rows(y.to_write(), matrix)}, epsilon, tape.call());
    return y;
  }
  const Variable rstd = tape.make(Layout(std::span<const int64_t>(matrix.shape).first(1)), sum_type(x.dtype()));
  rms_norm_forward(in, {rows(y.to_write(), matrix), {}, rstd.to_write()}, epsilon, tape.call());
  tape.record({y}, {x, g}, [&tape, x, y, g, rstd, matrix] {
    rms_norm_backward({rows(x.value(), matrix), value_of(g), {}, rstd.value(), rows(y.gradient(), matrix)},
                      targets_of(x, matrix, g, {}), tape.call());
  });
  return y;
}

}  // namespace qkv::nn
