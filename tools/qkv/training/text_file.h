// Texts in files.
#pragma once
#include <string>

namespace qkv::cli {

/// All bytes of a file or pipe. Throws FileError.
std::string read_text(const std::string& path);

}  // namespace qkv::cli
