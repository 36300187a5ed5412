#include "nn/optimizer_step.h"

#include <atomic>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "nn/check.h"
#include "nn/rows.h"

namespace qkv::nn {
namespace {

/// {count} as {1, count}; of no tensor none.
template <class Void> View<Void> as_row(const View<Void>& v) {
  if (v.rank == 0) return {};
  const int64_t shape[] = {1, v.shape[0]}, strides[] = {v.shape[0], 1};
  return {v.data, v.dtype, Layout(shape, strides)};
}

check::Caller check_flat(const char* function, const char* name, const View<const void>& v) {
  if (v.rank != 1) shape_error("{}: {} has shape {}, expected {{count}}; view it as one axis", function, name, v);
  const check::Caller caller{function, v.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32};
  check::vector(caller, name, v, v.shape[0]);
  return caller;
}

check::Caller check_step(const char* function, const Step& step, int64_t number) {
  const check::Caller caller = check_flat(function, "parameters", step.parameters);
  check::saved(caller, "parameters", step.parameters, step.parameters.shape[0]);
  check::vector(caller, "gradient", step.gradient, step.parameters.shape[0]);
  if (step.copy) check::vector(caller, "copy", step.copy, step.parameters.shape[0]);
  if (number < 1) option_error("{}: number is {}, expected 1 or more; count steps from 1", function, number);
  return caller;
}

void check_range(const char* function, const char* name, double value, double below) {
  if (!(value >= 0 && value < below))
    option_error("{}: {} is {}, expected 0 or more{}; correct it", function, name, value,
                 std::isfinite(below) ? " and below 1" : "");
}

constexpr double kAny = std::numeric_limits<double>::infinity();

/// f(parameters, gradient, first element, n) for pieces; then the new parameters go into the copy.
template <class T, class F> void for_step(const Step& step, const Call& call, const F& f) {
  const View<void> parameters = as_row(step.parameters), copy = as_row(step.copy);
  const View<const void> gradient = as_row(step.gradient);
  for_pieces(call, Grid(parameters), [&](int64_t, int64_t first, int64_t n) {
    T wide[kPiece];
    T* p = place<T>(parameters, 0, first, n, nullptr).data;
    f(p, read(gradient, 0, first, 1, n, wide).data, first, n);
    if (copy) kernels::row_kernels<T>().store(p, 0, 1, int(n), at(copy, 0, first), copy.dtype, 0, 1);
  });
}

template <class T> T* from(const View<void>& v, int64_t first) { return v ? static_cast<T*>(v.data) + first : nullptr; }

constexpr int64_t kChunk = 4096;

template <class T> double sum_of_chunk(const View<const void>& x, int64_t first, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    T wide[kPiece];
    const int64_t some = std::min(kPiece, n - i);
    sum += kernels::elementwise_kernels<T>().sum_of_squares(read(x, 0, first + i, 1, some, wide).data, some);
  }
  return sum;
}

template <class T> void scale(const View<void>& flat, double factor, std::atomic<bool>* finite, const Call& call) {
  const View<void> x = as_row(flat);
  for_pieces(call, Grid(x), [&](int64_t, int64_t first, int64_t n) {
    T wide[kPiece];
    const Block<const T> in = read(View<const void>(x), 0, first, 1, n, wide);
    const Block<T> out = place(x, 0, first, n, wide);
    kernels::elementwise_kernels<T>().scale(in.data, T(factor), n, out.data);
    finish(x, 0, first, 1, n, out);
    if (!finite) return;
    // What was rounded to 16 bits may be infinite only then.
    const Block<const T> stored = read(View<const void>(x), 0, first, 1, n, wide);
    if (!kernels::prefill_kernels<T>().all_finite(stored.data, n, 1, int(n)))
      finite->store(false, std::memory_order_relaxed);
  });
}

}  // namespace

void sgd_step(const Step& step, View<void> velocity, int64_t number, const SgdOptions& o, const Call& call) {
  const check::Caller caller = check_step("sgd_step", step, number);
  check_range("sgd_step", "learning_rate", o.learning_rate, kAny);
  check_range("sgd_step", "momentum", o.momentum, kAny);
  check_range("sgd_step", "weight_decay", o.weight_decay, kAny);
  if (o.nesterov && !(o.momentum > 0 && o.dampening == 0))
    option_error(
        "sgd_step: nesterov with momentum {} and dampening {}, expected momentum above 0 and dampening 0; "
        "set them so",
        o.momentum, o.dampening);
  if (velocity || o.momentum != 0) check::saved(caller, "velocity", velocity, step.parameters.shape[0]);
  if (o.momentum == 0) velocity = {};
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    const kernels::SgdFactors<T> factors{T(o.gradient_scale), T(o.learning_rate), T(o.weight_decay), T(o.momentum),
                                         T(1 - o.dampening),  number == 1,        o.nesterov};
    for_step<T>(step, call, [&](T* p, const T* g, int64_t first, int64_t n) {
      kernels::optimizer_kernels<T>().sgd(p, g, from<T>(velocity, first), n, factors);
    });
  });
}

void adam_step(const Step& step, const Moments& moments, int64_t number, const AdamOptions& o, const Call& call) {
  const check::Caller caller = check_step("adam_step", step, number);
  check::saved(caller, "moments.first", moments.first, step.parameters.shape[0]);
  check::saved(caller, "moments.second", moments.second, step.parameters.shape[0]);
  check_range("adam_step", "learning_rate", o.learning_rate, kAny);
  check_range("adam_step", "beta1", o.beta1, 1);
  check_range("adam_step", "beta2", o.beta2, 1);
  check_range("adam_step", "epsilon", o.epsilon, kAny);
  check_range("adam_step", "weight_decay", o.weight_decay, kAny);
  const double correction1 = 1 - std::pow(o.beta1, double(number));
  const double correction2 = std::sqrt(1 - std::pow(o.beta2, double(number)));
  const bool decoupled = o.decay == Decay::kDecoupled;
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    const kernels::AdamFactors<T> factors{T(o.gradient_scale),
                                          decoupled ? T(0) : T(o.weight_decay),
                                          T(decoupled ? 1 - o.learning_rate * o.weight_decay : 1),
                                          T(1 - o.beta1),
                                          T(o.beta2),
                                          T(1 - o.beta2),
                                          T(o.learning_rate / correction1),
                                          T(1 / correction2),
                                          T(o.epsilon)};
    for_step<T>(step, call, [&](T* p, const T* g, int64_t first, int64_t n) {
      kernels::optimizer_kernels<T>().adam(p, g, from<T>(moments.first, first), from<T>(moments.second, first), n,
                                           factors);
    });
  });
}

double sum_of_squares(View<const void> x, const Call& call) {
  const check::Caller caller = check_flat("sum_of_squares", "x", x);
  const int64_t count = x.shape[0], chunks = ceil_div(count, kChunk);
  WorkspaceOf workspace(call);
  auto* sums = static_cast<double*>(workspace.impl().call.reserve(size_t(chunks) * sizeof(double)));
  const View<const void> row = as_row(x);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) {
    constexpr int64_t kOfAnItem = 4;
    parallel(call, ceil_div(chunks, kOfAnItem), [&](int64_t item) {
      for (int64_t c = item * kOfAnItem; c < std::min(chunks, (item + 1) * kOfAnItem); ++c)
        sums[c] = sum_of_chunk<T>(row, c * kChunk, std::min(kChunk, count - c * kChunk));
    });
  });
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += sums[c];
  return sum;
}

double clip_factor(double norm, double max_norm) {
  if (!(max_norm > 0)) option_error("clip_factor: max_norm is {}, expected a positive number; 1 is usual", max_norm);
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1 || factor != factor ? factor : 1;
}

void scale_in_place(View<void> x, double factor, const Call& call) {
  const check::Caller caller = check_flat("scale_in_place", "x", x);
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) { scale<T>(x, factor, nullptr, call); });
}

bool unscale(View<void> x, double factor, const Call& call) {
  const check::Caller caller = check_flat("unscale", "x", x);
  std::atomic<bool> finite{true};
  with_arithmetic(caller.arithmetic, [&]<class T>(T*) { scale<T>(x, factor, &finite, call); });
  return finite;
}

}  // namespace qkv::nn
