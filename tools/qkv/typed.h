// Tensors typed on the command line.
#pragma once
#include <optional>
#include <string>

#include "qkv/io.h"

namespace qkv::cli {

/// "1,2;2,1" is {2, 2}: rows end with ';'. One row is {1, 2} for q, k, v and what they are made of, else {2}. Lengths,
/// positions and documents become int32, masks bool (0 or 1), all others float64; a bias may have -inf. Nothing where the
/// text is no list of numbers: then it names a file. Throws OptionError for rows of different length, and for numbers that
/// a tensor of this name cannot hold.
std::optional<Array> typed_tensor(const std::string& text, const std::string& name);

}  // namespace qkv::cli
