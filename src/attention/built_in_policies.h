// The words of the policies that the library has.
#pragma once
#include "qkv/attention.h"

namespace qkv {

const Vocabulary& built_in_policies();

}  // namespace qkv
