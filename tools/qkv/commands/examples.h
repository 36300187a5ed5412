// Worked examples: small enough to do by hand.
#pragma once
#include <span>

namespace qkv::cli {

struct Example {
  const char* name;
  const char* title;
  const char* options;  ///< of qkv explain: typing them gives the same page
};
std::span<const Example> examples();

/// Throws OptionError, which lists the names, where there is no such one.
const Example& find_example(const char* name);

}  // namespace qkv::cli
