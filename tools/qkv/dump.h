// A file of tensors of one or many attentions: q, k, v, out, weights, keep_mask, ..., or layer4.q and so on.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "qkv/io.h"

namespace qkv::cli {

/// A tensor named on the command line: FILE.npy, or FILE.npz:NAME (the name may be left out where there is only one).
Array read_tensor(const std::string& where);

class Dump {
 public:
  Dump() = default;  ///< an empty one: everything comes from options
  /// An .npz, or an .npy with weights.
  explicit Dump(const std::string& path);

  const std::string& path() const { return path_; }
  /// Numbers of the layers that there are, rising; {-1} where names have no layer.
  const std::vector<int>& layers() const { return layers_; }
  /// Throws OptionError, which lists the layers, where there is no such one.
  void expect_layer(int layer) const;
  /// layerN.NAME, else NAME, which then belongs to every layer.
  std::optional<Array> find(int layer, const std::string& name) const;
  bool has(int layer, const std::string& name) const;

 private:
  std::optional<std::string> key_of(int layer, const std::string& name) const;
  std::string path_;
  std::optional<Npz> npz_;
  std::optional<std::string> weights_;  // the .npy
  std::vector<int> layers_{-1};
};

/// "layer4." or nothing.
std::string layer_prefix(int layer);

}  // namespace qkv::cli
