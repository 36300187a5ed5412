// What a file is, by its bytes and its name, so that one of another kind is refused with the way to convert it.
#pragma once
#include <string>

namespace qkv::cli {

/// Throws FileError where `path` cannot be opened, is a folder, a device or empty, or is known to be something else than its
/// name promises: .npz, .safetensors, or .npy under any other name. What a damaged file lacks is for its reader to say; a pipe
/// cannot be looked into.
void expect_tensors(const std::string& path);

}  // namespace qkv::cli
