// The rules that hide pairs, by name.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "qkv/attention.h"

namespace qkv::cli {

constexpr uint8_t kVisible = 0, kNoKey = 1, kFirstRule = 2;  ///< what hiding_rule_of() gives

/// What each number of hiding_rule_of() means: "visible", "no such key (past its length)", "window:3,0", ...
std::vector<std::string> rule_names(const Attention&);

}  // namespace qkv::cli
