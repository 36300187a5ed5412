// What others need to know of the forward pass.
#pragma once
#include <cstdint>

#include "attention/plan.h"
#include "core/workspace.h"

namespace qkv {

/// Bytes that forward() takes from the workspace at most, without statistics and matrices.
int64_t forward_scratch(const Bound&, const Plan&, const Call&, Workspace::Impl&);

}  // namespace qkv
