// The words of the text form that need no vocabulary.
#pragma once
#include <string_view>
#include <vector>

#include "qkv/attention.h"

namespace qkv {

/// Those of the policies that the library has.
const Vocabulary& built_in_policies();

/// Those, and those of settings: align, scale, dropout, ...
std::vector<std::string_view> built_in_words();

}  // namespace qkv
