// A part of a problem as a problem of its own.
#pragma once
#include "qkv/problem.h"

namespace qkv::cli {

struct Part {
  int64_t batch = 0;
  int64_t head = -1;        ///< -1: all of them
  int64_t first_query = 0;  ///< within the batch entry, also where batches are packed
  int64_t queries = -1;     ///< -1: to the end
};

/// The rows and heads of one batch entry, not packed any more: views into the same memory, at the same positions, so that
/// forward() gives the same bits. The whole has to live as long. Throws whatever forward() throws about the whole.
Problem part_of(const Problem& whole, const Part&);

/// How many queries and columns of keys a batch entry has; of packed batches fewer than sizes say.
int64_t queries_of(const Problem&, int64_t batch);
int64_t columns_of(const Problem&, int64_t batch);

}  // namespace qkv::cli
