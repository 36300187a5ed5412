// Losses and their gradients.
#pragma once
#include <cstdint>

#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv::nn {

enum class Reduction : uint8_t { kMean, kSum };

struct CrossEntropyOptions {
  /// Targets become (1 - label_smoothing) of themselves plus label_smoothing / classes of every class, from 0 to 1. Szegedy et al.
  /// 2016, as in PyTorch.
  double label_smoothing = 0;
  int32_t ignored = -100;                  ///< rows with this target count for nothing, and their gradients are 0
  Reduction reduction = Reduction::kMean;  ///< the mean is over rows that are not ignored
  double upstream = 1;                     ///< the gradient by the loss: gradients are multiplied by it (loss scaling)
};

/// The loss, and how many rows count in it. The loss of no rows is 0.
struct Loss {
  double value = 0;
  int64_t rows = 0;
};

/// logits {rows, classes} with contiguous columns, of float32, float64, float16 or bfloat16; targets {rows}, class indices.
struct CrossEntropyInputs {
  View<const void> logits;
  View<const int32_t> targets;
};
/// {rows} each, of the type of arithmetic: the maximum of a row's logits, and the sum of exp(logit - maximum). With the logits
/// they are all that backward needs: 2 numbers a row, where the probabilities would be as large as the logits.
template <class Void> struct RowStatistics { View<Void> max{}, sum{}; };

/// The mean or sum over rows of -log softmax(logits)[target]; with label smoothing e
///   loss = (1 - e) (-log p[target]) + e average over classes of (-log p)
/// A logit of -inf has probability 0: the loss of a row is +inf where that is its target's, or any class's under smoothing, and the
/// gradient stays finite. A row with NaN, +inf, or nothing but -inf has no softmax: its loss and all its gradients are NaN, those
/// of other rows are not. Losses are added in double in the order of rows. `statistics` may be absent.
/// Throws ShapeError, DtypeError; OptionError for a target that is neither a class nor ignored, with its position.
Loss cross_entropy_forward(const CrossEntropyInputs&, const RowStatistics<void>& statistics = {},
                           const CrossEntropyOptions& = {}, const Call& = {});

/// dlogits = (softmax(logits) - target distribution) upstream / rows that count (or 1), 0 in ignored rows.
/// dlogits {rows, classes} may be the logits.
void cross_entropy_backward(const CrossEntropyInputs&, const RowStatistics<const void>& statistics, View<void> dlogits,
                            const CrossEntropyOptions& = {}, const Call& = {});

/// Both at once, with one exponential an element: for training steps that know upstream. Keeps nothing.
Loss cross_entropy(const CrossEntropyInputs&, View<void> dlogits, const CrossEntropyOptions& = {}, const Call& = {});

/// How many targets are not `ignored`. Throws where one is neither that nor one of `classes`.
int64_t count_targets(const char* function, View<const int32_t> targets, int64_t classes, int32_t ignored);

namespace detail {
/// cross_entropy() of some rows of a whole of `counted` rows; dlogits may be absent. Adds the rows' losses to `sum`, in order.
void cross_entropy_part(const CrossEntropyInputs&, View<void> dlogits, const CrossEntropyOptions&, int64_t counted,
                        double& sum, const Call&);
inline double reduced(double sum, int64_t rows, Reduction reduction) {
  return reduction == Reduction::kMean && rows > 0 ? sum / double(rows) : sum;
}
}  // namespace detail

/// What linear_cross_entropy() works with: targets {rows}, and memory for some rows of logits, {any, classes}.
struct LinearCrossEntropy {
  View<const int32_t> targets;
  View<void> chunk;
};

/// cross_entropy() of logits that are never held all at once: {rows, vocabulary} would be the largest array of a training step.
/// For rows [first, last) after rows, as many as the chunk has,
///   product(first, last, View<void> logits)          writes logits {last - first, classes}, as hidden W^T + b
///   use(first, last, View<const void> dlogits)       gets their gradient, in the same memory, for dhidden = dlogits W,
///                                                    dW += dlogits^T hidden, db += column sums
/// The loss has the same bits for any chunk. Throws as cross_entropy(), and what the two throw.
template <class Product, class Use>
Loss linear_cross_entropy(const LinearCrossEntropy& in, const CrossEntropyOptions& options, Product&& product,
                          Use&& use, const Call& call = {}) {
  const int64_t rows = in.targets.shape[0], classes = in.chunk.shape[1];
  const int64_t counted = count_targets("linear_cross_entropy", in.targets, classes, options.ignored);
  double sum = 0;
  for (int64_t first = 0; first < rows && in.chunk.shape[0] > 0; first += in.chunk.shape[0]) {
    const int64_t n = rows - first < in.chunk.shape[0] ? rows - first : in.chunk.shape[0];
    View<void> logits = in.chunk;
    logits.shape[0] = n;
    product(first, first + n, logits);
    const View<const int32_t> targets(&in.targets(first), {n}, {in.targets.strides[0]});
    detail::cross_entropy_part({logits, targets}, logits, options, counted, sum, call);
    use(first, first + n, View<const void>(logits));
  }
  return {detail::reduced(sum, counted, options.reduction), counted};
}

/// mean or sum of (x - y)^2.  x, y, dx {rows, columns}; dx = 2 (x - y) upstream / count, where it is given; the gradient by y is its
/// negative. Sums in double. Of no elements: 0. Throws ShapeError, DtypeError.
struct ErrorOptions {
  Reduction reduction = Reduction::kMean;
  double upstream = 1;
};
double mean_squared_error(View<const void> x, View<const void> y, View<void> dx = {}, const ErrorOptions& = {},
                          const Call& = {});
/// mean or sum of |x - y|;  dx = sign(x - y) upstream / count, 0 where they are equal.
double mean_absolute_error(View<const void> x, View<const void> y, View<void> dx = {}, const ErrorOptions& = {},
                           const Call& = {});

}  // namespace qkv::nn
