// The library's messages, in the words of who calls it from Python.
#pragma once
#include <string>
#include <string_view>

namespace qkv::python {

/// The same message without the C++ function that begins it, with the keywords of qkv.attention for the fields of Inputs, and
/// with shapes as Python writes them: "forward: key_lengths has shape {3}, ..." as "kv_lengths has shape (3,), ...".
std::string for_callers(std::string_view message);

}  // namespace qkv::python
