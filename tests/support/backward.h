// Running backward() in tests.
#pragma once
#include "qkv/backward.h"
#include "tests/support/compare.h"

namespace qkv::testing {

/// The gradients of a loss by out and lse: normal numbers.
struct Loss {
  Tensor dout, dlse;
  explicit Loss(const Example& e, Placement placement = Placement::kContiguous)
      : dout(e.out(placement).normal(e.shape.seed * 10 + 8)), dlse(e.lse().normal(e.shape.seed * 10 + 9)) {}
};

/// What backward() gave; tensors that the example does not have are absent.
struct Slopes {
  Tensor dquery, dkey, dvalue, dbias, dalibi_slopes, dsinks;

  Slopes(const Example& e, Placement placement) {
    dquery = like(e.query, e.shape.dtype, placement);
    dkey = like(e.key, e.shape.dtype, placement);
    dvalue = like(e.value, e.shape.dtype, placement);
    if (e.bias) dbias = like(e.bias, e.lse_type(), placement);
    if (e.alibi_slopes) dalibi_slopes = like(e.alibi_slopes, e.lse_type());
    if (e.sinks) dsinks = like(e.sinks, e.lse_type());
  }
  Gradients views() {
    return {.dquery = dquery.view(), .dkey = dkey.view(), .dvalue = dvalue.view(), .dbias = dbias.view(),
            .dalibi_slopes = dalibi_slopes.view(), .dsinks = dsinks.view()};
  }

 private:
  static Tensor like(const Tensor& t, DType type, Placement placement = Placement::kContiguous) {
    const Layout& l = t.layout();
    return Tensor(type, {l.shape.begin(), l.shape.begin() + l.rank}, placement);
  }
};

/// What backward() needs to know of the forward pass.
enum class Sums { kExact, kOnlyLse };

/// Runs forward() and backward() into poisoned tensors.
inline Slopes slopes(const Example& e, const Loss& by, const Call& call = {},
                     Placement placement = Placement::kContiguous, Sums sums = Sums::kExact) {
  Tensor out = e.out(), lse = e.lse(), row_max = e.lse(), row_sum = e.lse();
  forward(e.attention, e.inputs(),
          {.out = out.view(), .lse = lse.view(), .row_max = row_max.view(), .row_sum = row_sum.view()}, call);
  Upstream up{.out = out.view(), .lse = lse.view(), .dout = by.dout.view(), .dlse = by.dlse.view()};
  if (sums == Sums::kExact) up.row_max = row_max.view(), up.row_sum = row_sum.view();
  Slopes s(e, placement);
  backward(e.attention, e.inputs(), up, s.views(), call);
  return s;
}

}  // namespace qkv::testing
