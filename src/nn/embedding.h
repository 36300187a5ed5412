// Rows of a table by their numbers.
#pragma once
#include "nn/rows.h"
#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv::nn {

/// out[r] = table[ids[r]].  table {vocabulary, dim} and out {rows, dim} with contiguous columns, of float32, float64, float16 or
/// bfloat16, also mixed, float64 with float64 alone; ids {rows}.
/// Throws ShapeError, DtypeError; OptionError for an id outside the table, with its position.
void embedding_forward(View<const void> table, View<const int32_t> ids, View<void> out, const Call& = {});

/// An id whose row gets no gradient, where padding >= 0.
struct EmbeddingOptions {
  Into into = Into::kAdd;
  int32_t padding = -1;
};

/// dtable[ids[r]] += dout[r], after dtable {vocabulary, dim} was set to 0 where it is overwritten. Keeps nothing but the ids.
/// Rows of one id are added in their order, one after the other in the type of arithmetic, and rounded once: the same bits for any
/// number of threads, without atomic sums. O(rows log rows + rows * dim), for the sorting of ids.
void embedding_backward(View<const int32_t> ids, View<const void> dout, View<void> dtable, const EmbeddingOptions& = {},
                        const Call& = {});

}  // namespace qkv::nn
