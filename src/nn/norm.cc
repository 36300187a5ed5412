#include "nn/norm.h"

#include "kernels/norm.h"
#include "nn/check.h"
#include "nn/row_runs.h"

namespace qkv::nn {
namespace {

enum class Kind : uint8_t { kLayer, kRms };

template <class T> bool in_place(const View<const void>& v) { return !v || v.dtype == kDType<T>; }
template <class T> T* row_numbers(const View<const void>& v, int64_t row) {
  return v ? static_cast<T*>(const_cast<void*>(v.data)) + row : nullptr;
}

check::Caller check_forward(const char* function, Kind kind, const NormInputs& in, const NormOutputs& out,
                            double epsilon) {
  const check::Caller caller = check::matrix(function, "x", in.x);
  const int64_t rows = in.x.shape[0], dim = in.x.shape[1];
  if (in.gain) check::vector(caller, "gain", in.gain, dim);
  if (in.bias) check::vector(caller, "bias", in.bias, dim);
  if (kind == Kind::kRms && (in.bias || out.mean))
    option_error("{}: {} is given, expected none; leave it out or call layer_norm_forward", function,
                 in.bias ? "bias" : "mean");
  check::matrix(caller, "y", out.y, rows, dim);
  if (out.mean) check::saved(caller, "mean", out.mean, rows);
  if (out.rstd) check::saved(caller, "rstd", out.rstd, rows);
  if (!(epsilon >= 0))
    option_error("{}: epsilon is {}, expected 0 or a positive number; 1e-5 is usual", function, epsilon);
  return caller;
}

template <class T>
void forward(Kind kind, const NormInputs& in, const NormOutputs& out, double epsilon, const Call& call) {
  const int64_t dim = in.x.shape[1];
  WorkspaceOf workspace(call);
  T* parameters = static_cast<T*>(workspace.impl().call.reserve(2 * size_t(dim) * sizeof(T)));
  const T *gain = widened(in.gain, parameters), *bias = widened(in.bias, parameters + dim);
  const bool narrow = !in_place<T>(in.x) || !in_place<T>(out.y);
  const auto& kernels = kernels::norm_kernels<T>();
  const auto run = kind == Kind::kLayer ? kernels.layer_norm : kernels.rms_norm;
  for_rows<T>(call, workspace.impl(), in.x, narrow ? Stretch{4, 8} : Stretch{}, [&](int64_t row, int rows, T* scratch) {
    const Block<const T> x = read(in.x, row, 0, rows, dim, scratch);
    const Block<T> y = place(out.y, row, 0, dim, scratch + (narrow ? 4 * dim : 0));
    run({x.data, x.stride, y.data, y.stride, rows, dim, gain, bias, T(epsilon), row_numbers<T>(out.mean, row),
         row_numbers<T>(out.rstd, row)});
    finish(out.y, row, 0, rows, dim, y);
  });
}

check::Caller check_backward(const char* function, Kind kind, const NormBackwardInputs& in, const NormGradients& out) {
  const check::Caller caller = check::matrix(function, "x", in.x);
  const int64_t rows = in.x.shape[0], dim = in.x.shape[1];
  check::matrix(caller, "dy", in.dy, rows, dim);
  if (in.gain) check::vector(caller, "gain", in.gain, dim);
  if (kind == Kind::kLayer) check::saved(caller, "mean", in.mean, rows);
  check::saved(caller, "rstd", in.rstd, rows);
  if (out.dx) check::matrix(caller, "dx", out.dx, rows, dim);
  if (out.dgain) check::vector(caller, "dgain", out.dgain, dim);
  if (out.dbias) check::vector(caller, "dbias", out.dbias, dim);
  if (kind == Kind::kRms && (in.mean || out.dbias))
    option_error("{}: {} is given, expected none; leave it out or call layer_norm_backward", function,
                 in.mean ? "mean" : "dbias");
  return caller;
}

/// One block of rows; its sums are added to those of its run. scratch {3 * 32 + 2, dim}, of which the last two rows are for sums.
template <class T> struct BackwardBlock {
  Kind kind;
  const NormBackwardInputs& in;
  const NormGradients& out;
  const T* gain;
  double *dgain, *dbias;  // of the run, or null

  void operator()(int64_t row, int rows, T* scratch) const {
    constexpr int kBlock = RowRuns::kBlock;
    const int64_t dim = in.x.shape[1];
    T* sums = scratch + (scratch_rows() - 2) * dim;
    std::fill_n(sums, 2 * dim, T(0));
    const Block<const T> x = read(in.x, row, 0, rows, dim, scratch);
    const Block<const T> dy = read(in.dy, row, 0, rows, dim, scratch + (kBlock * dim));
    Block<T> dx{nullptr, 0};
    if (out.dx) {
      dx = place(out.dx, row, 0, dim, scratch + (2 * kBlock * dim));
      if (out.dx_into == Into::kAdd) read(View<const void>(out.dx), row, 0, rows, dim, scratch + (2 * kBlock * dim));
    }
    const auto& kernels = kernels::norm_kernels<T>();
    (kind == Kind::kLayer ? kernels.layer_norm_backward : kernels.rms_norm_backward)(
        {x.data, x.stride, dy.data, dy.stride, dx.data, dx.stride, out.dx_into == Into::kAdd, rows, dim, gain,
         row_numbers<T>(in.mean, row), row_numbers<T>(in.rstd, row), dgain ? sums : nullptr,
         dbias ? sums + dim : nullptr});
    if (out.dx) finish(out.dx, row, 0, rows, dim, dx);
    if (dgain) kernels::elementwise_kernels<T>().add_wide(sums, dim, dgain);
    if (dbias) kernels::elementwise_kernels<T>().add_wide(sums + dim, dim, dbias);
  }
  int scratch_rows() const {
    return in_place<T>(in.x) && in_place<T>(in.dy) && in_place<T>(out.dx) ? 2 : 3 * RowRuns::kBlock + 2;
  }
};

template <class T> void backward(Kind kind, const NormBackwardInputs& in, const NormGradients& out, const Call& call) {
  const int64_t dim = in.x.shape[1], line = round_up(dim, 8);
  const RowRuns cut(in.x.shape[0], dim);
  WorkspaceOf workspace(call);
  Carver count;
  const auto lay_out = [&](Carver& carver) {
    double* totals = carver.take<double>(2 * cut.runs() * line);
    return std::pair(totals, carver.take<T>(dim));
  };
  lay_out(count);
  Carver carver(workspace.impl().call.reserve(count.used()));
  const auto parts = lay_out(carver);
  double* totals = parts.first;
  const T* gain = widened(in.gain, parts.second);
  const BackwardBlock<T> any{kind, in, out, gain, nullptr, nullptr};
  const size_t bytes = size_t(any.scratch_rows()) * size_t(dim) * sizeof(T);
  workspace.impl().prepare_leases(at_once(call, cut.runs()), bytes);
  parallel(call, cut.runs(), [&](int64_t run) {
    const Workspace::Impl::Lease lease(workspace.impl(), bytes);
    double* sums = totals + 2 * run * line;
    std::fill_n(sums, 2 * line, 0.0);
    BackwardBlock<T> block = any;
    if (out.dgain) block.dgain = sums;
    if (out.dbias) block.dbias = sums + line;
    cut.blocks(run, [&](int64_t row, int rows) { block(row, rows, static_cast<T*>(lease.data())); });
  });
  if (out.dgain) add_up_runs<T>(totals, cut.runs(), 2 * line, 0, dim, out.dgain, out.parameters_into);
  if (out.dbias) add_up_runs<T>(totals + line, cut.runs(), 2 * line, 0, dim, out.dbias, out.parameters_into);
}

void forward(const char* function, Kind kind, const NormInputs& in, const NormOutputs& out, double epsilon,
             const Call& call) {
  const check::Caller caller = check_forward(function, kind, in, out, epsilon);
  if (in.x.size() == 0) return;
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) { forward<T>(kind, in, out, epsilon, call); });
}

void backward(const char* function, Kind kind, const NormBackwardInputs& in, const NormGradients& out,
              const Call& call) {
  const check::Caller caller = check_backward(function, kind, in, out);
  if (in.x.size() == 0) {
    if (out.dgain) add_nothing(out.dgain, out.parameters_into);
    if (out.dbias) add_nothing(out.dbias, out.parameters_into);
    return;
  }
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) { backward<T>(kind, in, out, call); });
}

}  // namespace

void layer_norm_forward(const NormInputs& in, const NormOutputs& out, double epsilon, const Call& call) {
  forward("layer_norm_forward", Kind::kLayer, in, out, epsilon, call);
}
void rms_norm_forward(const NormInputs& in, const NormOutputs& out, double epsilon, const Call& call) {
  forward("rms_norm_forward", Kind::kRms, in, out, epsilon, call);
}
void layer_norm_backward(const NormBackwardInputs& in, const NormGradients& out, const Call& call) {
  backward("layer_norm_backward", Kind::kLayer, in, out, call);
}
void rms_norm_backward(const NormBackwardInputs& in, const NormGradients& out, const Call& call) {
  backward("rms_norm_backward", Kind::kRms, in, out, call);
}

}  // namespace qkv::nn
