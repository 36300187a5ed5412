// The JSON in front of a .safetensors' data:
// {"__metadata__": {"format": "pt"}, "q": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/view.h"

namespace qkv::io {

struct SafetensorsEntry {
  std::string name;
  std::string type;            ///< as the file says it: "F32", "BF16", "F8_E4M3", ...
  std::optional<DType> dtype;  ///< nothing where the format has a type that tensors do not have here
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  ///< bytes after the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their data
  std::map<std::string, std::string, std::less<>> metadata;
};

/// Parses the header of a file that has `data_bytes` bytes after it. Strict: unknown fields and types, anything twice, and
/// extents that do not fit shape and type, leave the data, overlap or leave bytes over are refused. Throws FileError; `file` is named in its message. Needs memory in proportion to the entries, not to what the
/// text claims.
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes, const std::string& file);

/// The format's word for a type: "F32", "BF16", ...
std::string_view safetensors_type(DType);

}  // namespace qkv::io
