// From a pass back to the formula that it claims to compute.
#pragma once
#include <memory>

#include "reference/problem.h"

namespace qkv::reference {

/// The adapter of the scalar struct that a built-in pattern's text names (Causal, Window, ...), so that the references run
/// the struct's formula and not the library's vectors. A pattern of a user's own is its own specification.
std::shared_ptr<const passes::Pattern> specification_of(const std::shared_ptr<const passes::Pattern>&);

/// The same of a score modifier, bound to its tensors. A user's own runs on tiles of one pair.
std::unique_ptr<Modifier> modifier_of(const passes::Score&, const Inputs&, passes::Arena&);

}  // namespace qkv::reference
