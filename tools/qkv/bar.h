// Horizontal bars of text.
#pragma once
#include <string>

#include "qkv/terminal.h"

namespace qkv::cli {

/// `share` of `width` columns, in eighths of a column where block elements may be used, else in '#'. What is above 0 has at
/// least one mark; NaN and what lies below have none.
std::string bar(double share, int width, const Screen&);

}  // namespace qkv::cli
