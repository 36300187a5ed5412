// Biases by relative position as operations.
#include "autograd/parameter_rows.h"
#include "autograd/rows.h"
#include "autograd/scratch.h"
#include "qkv/operations.h"

namespace qkv::nn {

Variable t5_bias(Tape& tape, const T5Buckets& buckets, const T5Pairs& pairs, const Rows& table) {
  const Variable t = rows_of(tape, "t5_bias", "table", table, 2);
  if (!t || t.shape(0) < buckets.buckets)
    shape_error("t5_bias: table is {}, expected {{{}, heads}}", t ? t.layout() : Layout(), buckets.buckets);
  const int64_t pair_sizes[] = {pairs.queries, pairs.keys}, sizes[] = {1, t.shape(1), pairs.queries, pairs.keys};
  const Variable index = tape.make(Layout(pair_sizes), DType::kInt32), bias = tape.make(Layout(sizes), t.dtype());
  t5_index(buckets, pairs.query_offset, pairs.key_start, index.to_write().as<int32_t>());
  relative_bias_forward(index.value().as<const int32_t>(), t.value(), bias.to_write(), tape.call());
  tape.record({bias}, {t}, [&tape, t, index, bias] {
    into_sink(tape, t, [&](View<void> dtable) {
      relative_bias_backward(index.value().as<const int32_t>(), bias.gradient(), dtable, tape.call());
    });
  });
  return bias;
}

}  // namespace qkv::nn
