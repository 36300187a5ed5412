// The text in front of an .npy's data: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/view.h"

namespace qkv::io {

struct NpyHeader {
  DType dtype = DType::kFloat32;
  bool swapped = false;  ///< stored with the other byte order than this machine's
  bool fortran = false;
  std::vector<int64_t> shape;
};

/// Parses the dictionary. Strict: exactly the three keys, once each, in any order; what every NumPy since 1.0 has written
/// passes, also Python 2's (3L, 4L). Throws FileError; `file` is named in its message.
NpyHeader parse_npy_header(std::string_view text, const std::string& file);

/// Magic, version, length and dictionary, padded so that data after it begin at a multiple of 64.
std::string npy_preamble(DType dtype, std::string_view shape_tuple);

}  // namespace qkv::io
