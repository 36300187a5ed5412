// What the names of tensors in a file mean: those of docs/dumps.md, and those that other programs give.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace qkv::cli {

struct TensorName {
  std::string tensor;  ///< "q", "weights", "keep_mask", ...
  int layer = -1;      ///< -1: none in the name
  bool exact = false;  ///< the name is one of the dump format; else one that a pattern fits
};

/// Nothing where neither the format has the name nor a pattern fits.
std::optional<TensorName> understand(std::string_view name);

/// Whether commands read tensors of that name (the others are results).
bool is_input(std::string_view tensor);

}  // namespace qkv::cli
