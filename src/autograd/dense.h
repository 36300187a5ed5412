// y = x W^T + b and its gradients, of matrices, with weights packed once for each version of the parameter.
#pragma once
#include "qkv/operations.h"

namespace qkv::nn {

class Dense {
 public:
  /// x is of the type `storage`. Throws ShapeError, DtypeError, OptionError, which begin with `function`.
  Dense(Tape&, const char* function, const Rows& weight, const Rows& bias, DType storage);

  const Variable& weight() const { return weight_; }
  const Variable& bias() const { return bias_; }
  int64_t in() const { return weight_.shape(1); }
  int64_t out() const { return weight_.shape(0); }
  void forward(View<const void> x, View<void> y) const;  ///< x {rows, in}, y {rows, out}

  struct Sinks {
    Variable::Sink x{}, weight{}, bias{};
  };
  Sinks sinks(const Variable& x) const { return {x.sink(), weight_.sink(), bias_.sink()}; }
  /// Into those sinks that there are.   dy {rows, out}; sinks.x {rows, in}
  void backward(View<const void> x, View<const void> dy, const Sinks&) const;

 private:
  Tape* tape_;
  Rows rows_;
  Variable weight_, bias_;
  DType storage_;
};

}  // namespace qkv::nn
