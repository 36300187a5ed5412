// Sentences in the columns that a terminal has.
#pragma once
#include <string>
#include <string_view>

#include "qkv/terminal.h"

namespace qkv::cli {

/// Lines that are wider than the terminal go on under their own indentation, cut at spaces that have no colour; a single
/// word stays whole, and `a line of code` too, so that it can be copied. Into a pipe or a file text goes as it is.
std::string fold(std::string_view text, const Screen&);

}  // namespace qkv::cli
