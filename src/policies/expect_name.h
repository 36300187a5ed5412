// Tensors of built-in policies keep their names: under these they are checked when they come in.
#pragma once
#include "core/format.h"
#include "qkv/adapt.h"

namespace qkv::policies {

inline void expect_name(const Parameter& p, std::string_view name) {
  if (p.name != name)
    option_error("{}: its tensor is called '{}', expected '{}', the name that Inputs has for it", name, p.name, name);
}

}  // namespace qkv::policies
