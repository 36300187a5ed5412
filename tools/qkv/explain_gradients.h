// The way back of one query.
#pragma once
#include "qkv/explain.h"
#include "reference/problem.h"

namespace qkv::cli {

/// Adds gradients, and how far the library's backward() agrees, to an explanation that has everything else. `part`: the one
/// query, with its dout; `reference`: the same problem.
void add_gradients(Explanation&, const Problem& part, const reference::Problem& reference, const Call&);

}  // namespace qkv::cli
