// Files of tensors on the command line, by the ending of their name.
#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "qkv/io.h"

namespace qkv::cli {

/// A file of tensors by name: .npz or .safetensors.
class TensorFile {
 public:
  static bool is_one(std::string_view path);
  /// Throws FileError.
  explicit TensorFile(const std::string& path);
  const std::vector<std::string>& names() const;
  Array read(std::string_view name) const;

 private:
  std::variant<Npz, Safetensors> file_;
};

/// A tensor named on the command line: FILE.npy (or a pipe), or FILE.npz:NAME, FILE.safetensors:NAME; the name may be left out
/// where there is only one. Throws FileError, OptionError.
Array read_tensor(const std::string& where);

/// FILE of FILE:NAME.
std::string file_of(const std::string& where);

/// An .npy or a pipe. Throws FileError.
Array read_array(const std::string& path);

}  // namespace qkv::cli
