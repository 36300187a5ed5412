#include <cmath>

#include "kernels/cross_entropy.h"
#include "nn/check.h"
#include "nn/loss.h"
#include "nn/rows.h"

namespace qkv::nn {
namespace {

check::Caller check_inputs(const char* function, const CrossEntropyInputs& in, const CrossEntropyOptions& options) {
  const check::Caller caller = check::matrix(function, "logits", in.logits);
  if (in.targets.rank != 1 || in.targets.shape[0] != in.logits.shape[0])
    shape_error("{}: targets have shape {}, expected {{{}}}, one for each row of logits {}; pass one a row", function,
                in.targets, in.logits.shape[0], in.logits);
  check::data(function, "targets", in.targets);
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    option_error("{}: label_smoothing is {}, expected 0 to 1; 0.1 is usual, 0 is none", function,
                 options.label_smoothing);
  return caller;
}

/// What a row's target is, and what the gradient of its loss is multiplied by.
template <class T> struct Rows {
  const CrossEntropyInputs& in;
  const CrossEntropyOptions& options;
  double scale;

  Rows(const CrossEntropyInputs& inputs, const CrossEntropyOptions& all, int64_t counted)
      : in(inputs), options(all), scale(detail::reduced(all.upstream, counted, all.reduction)) {}
  int64_t classes() const { return in.logits.shape[1]; }
  bool counts(int64_t row) const { return in.targets(row) != options.ignored; }

  /// The loss of a row. Its exponentials, if they are wanted, may be written over x.
  double loss(const T* x, int64_t row, T* exponentials, kernels::RowSoftmax<T>& softmax) const {
    const auto& kernels = kernels::cross_entropy_kernels<T>();
    const double e = options.label_smoothing, target = double(x[in.targets(row)]);
    const double average = e == 0 ? 0 : kernels.sum(x, classes()) / double(classes());
    softmax = kernels.softmax(x, classes(), exponentials);
    // The maximum comes first: a large one would take digits of the logarithm.
    const double log_sum = std::log(softmax.sum), of_target = double(softmax.max) - target + log_sum;
    if (e == 0) return of_target;
    return (e == 1 ? 0 : (1 - e) * of_target) + e * (double(softmax.max) - average + log_sum);
  }
  /// What every class has less, and what the target has less beside that.
  T rest() const { return T(scale * options.label_smoothing / double(classes())); }
  void subtract_target(int64_t row, T* d) const { d[in.targets(row)] -= T(scale * (1 - options.label_smoothing)); }
};

template <class T> int scratch_rows(const View<const void>& logits, const View<const void>& dlogits) {
  return logits.dtype == kDType<T> && (!dlogits || dlogits.dtype == kDType<T>) ? 0 : 2;
}

template <class T> void save(const RowStatistics<void>& to, int64_t row, T max, T sum) {
  if (to.max) static_cast<T*>(to.max.data)[row] = max;
  if (to.sum) static_cast<T*>(to.sum.data)[row] = sum;
}

/// Losses, with gradients or with statistics or with neither.
template <class T>
void losses(const Rows<T>& all, const View<void>& dlogits, const RowStatistics<void>& statistics, double& sum,
            const Call& call) {
  const View<const void>& logits = all.in.logits;
  const int64_t rows = logits.shape[0], classes = all.classes();
  WorkspaceOf workspace(call);
  auto* by_row = static_cast<double*>(workspace.impl().call.reserve(size_t(rows) * sizeof(double)));
  const int scratch = scratch_rows<T>(logits, dlogits);
  for_rows<T>(call, workspace.impl(), logits, {1, scratch}, [&](int64_t row, int, T* memory) {
    Block<T> d{nullptr, 0};
    if (dlogits) d = place(dlogits, row, 0, classes, memory + (scratch == 0 ? 0 : classes));
    kernels::RowSoftmax<T> softmax{0, 0};
    by_row[row] = 0;
    if (all.counts(row)) {
      by_row[row] = all.loss(read(logits, row, 0, 1, classes, memory).data, row, d.data, softmax);
      if (dlogits) {
        kernels::cross_entropy_kernels<T>().gradient(d.data, T(all.scale / softmax.sum), all.rest(), classes, d.data);
        all.subtract_target(row, d.data);
      }
    } else if (dlogits) {
      std::fill_n(d.data, classes, T(0));
    }
    save(statistics, row, softmax.max, T(softmax.sum));
    if (dlogits) finish(dlogits, row, 0, 1, classes, d);
  });
  for (int64_t r = 0; r < rows; ++r) sum += by_row[r];
}

template <class T>
void backward(const Rows<T>& all, const RowStatistics<const void>& statistics, const View<void>& dlogits,
              const Call& call) {
  const View<const void>& logits = all.in.logits;
  const int64_t classes = all.classes();
  const int scratch = scratch_rows<T>(logits, dlogits);
  WorkspaceOf workspace(call);
  for_rows<T>(call, workspace.impl(), logits, {1, scratch}, [&](int64_t row, int, T* memory) {
    const Block<T> d = place(dlogits, row, 0, classes, memory + (scratch == 0 ? 0 : classes));
    if (all.counts(row)) {
      const T* x = read(logits, row, 0, 1, classes, memory).data;
      const T max = static_cast<const T*>(statistics.max.data)[row],
              sum = static_cast<const T*>(statistics.sum.data)[row];
      kernels::cross_entropy_kernels<T>().gradient_of_logits(x, max, T(all.scale / double(sum)), all.rest(), classes,
                                                             d.data);
      all.subtract_target(row, d.data);
    } else {
      std::fill_n(d.data, classes, T(0));
    }
    finish(dlogits, row, 0, 1, classes, d);
  });
}

}  // namespace

int64_t count_targets(const char* function, View<const int32_t> targets, int64_t classes, int32_t ignored) {
  int64_t counted = 0;
  for (int64_t r = 0; r < targets.shape[0] && targets.rank == 1; ++r) {
    const int32_t target = targets(r);
    if (target == ignored) continue;
    if (target < 0 || target >= classes)
      option_error("{}: targets[{}] is {}, expected 0 to {}, or {} for a row that does not count; correct it", function,
                   r, target, classes - 1, ignored);
    ++counted;
  }
  return counted;
}

void detail::cross_entropy_part(const CrossEntropyInputs& in, View<void> dlogits, const CrossEntropyOptions& options,
                                int64_t counted, double& sum, const Call& call) {
  const check::Caller caller = check_inputs("cross_entropy", in, options);
  if (dlogits) check::matrix(caller, "dlogits", dlogits, in.logits.shape[0], in.logits.shape[1]);
  if (in.logits.size() == 0) return;
  with_arithmetic(caller.arithmetic,
                  [&]<class T>(T*) { losses<T>(Rows<T>(in, options, counted), dlogits, {}, sum, call); });
}

Loss cross_entropy(const CrossEntropyInputs& in, View<void> dlogits, const CrossEntropyOptions& options,
                   const Call& call) {
  const check::Caller caller = check_inputs("cross_entropy", in, options);
  check::matrix(caller, "dlogits", dlogits, in.logits.shape[0], in.logits.shape[1]);
  const int64_t counted = count_targets("cross_entropy", in.targets, in.logits.shape[1], options.ignored);
  double sum = 0;
  detail::cross_entropy_part(in, dlogits, options, counted, sum, call);
  return {detail::reduced(sum, counted, options.reduction), counted};
}

Loss cross_entropy_forward(const CrossEntropyInputs& in, const RowStatistics<void>& statistics,
                           const CrossEntropyOptions& options, const Call& call) {
  const check::Caller caller = check_inputs("cross_entropy_forward", in, options);
  if (statistics.max) check::saved(caller, "statistics.max", statistics.max, in.logits.shape[0]);
  if (statistics.sum) check::saved(caller, "statistics.sum", statistics.sum, in.logits.shape[0]);
  const int64_t counted = count_targets("cross_entropy_forward", in.targets, in.logits.shape[1], options.ignored);
  double sum = 0;
  if (in.logits.size() > 0)
    with_arithmetic(caller.arithmetic,
                    [&]<class T>(T*) { losses<T>(Rows<T>(in, options, counted), {}, statistics, sum, call); });
  return {detail::reduced(sum, counted, options.reduction), counted};
}

void cross_entropy_backward(const CrossEntropyInputs& in, const RowStatistics<const void>& statistics,
                            View<void> dlogits, const CrossEntropyOptions& options, const Call& call) {
  const check::Caller caller = check_inputs("cross_entropy_backward", in, options);
  check::saved(caller, "statistics.max", statistics.max, in.logits.shape[0]);
  check::saved(caller, "statistics.sum", statistics.sum, in.logits.shape[0]);
  check::matrix(caller, "dlogits", dlogits, in.logits.shape[0], in.logits.shape[1]);
  const int64_t counted = count_targets("cross_entropy_backward", in.targets, in.logits.shape[1], options.ignored);
  if (in.logits.size() == 0) return;
  with_arithmetic(caller.arithmetic,
                  [&]<class T>(T*) { backward<T>(Rows<T>(in, options, counted), statistics, dlogits, call); });
}

}  // namespace qkv::nn
