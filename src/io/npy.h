// One .npy in any stream of bytes: a file, an entry of a zip, memory.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/bytes.h"
#include "io/c_order.h"

namespace qkv::io {

/// Reads the array and expects the source to end there. `limit`: most bytes of data. Throws FileError, which names `file`.
Array parse_npy(Source& source, const std::string& file, uint64_t limit);

/// What a tensor is in a file: header and elements in C order. Points into the view where that lies so already.
struct NpyImage {
  std::string preamble;
  CopyInOrder elements;
};
NpyImage npy_image(View<const void> tensor);

}  // namespace qkv::io
