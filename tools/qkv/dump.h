// A file of tensors of one or many attentions: q, k, v, out, weights, keep_mask, ..., or layer4.q and so on. docs/dumps.md.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "qkv/sidecar.h"
#include "qkv/tensor_file.h"

namespace qkv::cli {

class Dump {
 public:
  Dump() = default;  ///< an empty one: everything comes from options
  /// An .npz or .safetensors, or an .npy with weights.
  explicit Dump(const std::string& path);

  const std::string& path() const { return path_; }
  const Sidecar& sidecar() const { return sidecar_; }
  /// Numbers of the layers that there are, rising; {-1} where names have no layer.
  const std::vector<int>& layers() const { return layers_; }
  /// Throws OptionError, which lists the layers, where there is no such one.
  void expect_layer(int layer) const;
  /// layerN.NAME, else NAME, which then belongs to every layer; else what a pattern fits (names.h), of the layer or of all.
  /// Throws OptionError where several names would do, FileError.
  std::optional<Array> find(int layer, const std::string& name) const;
  bool has(int layer, const std::string& name) const;
  /// The file is an .npy, which has no names: it is taken as weights.
  bool is_single() const { return weights_.has_value(); }
  /// The name in the file, where it is not one of the format.
  std::optional<std::string> other_name(int layer, const std::string& name) const;
  /// Throws FileError where a tensor is called a mask and may mean either.
  void expect_clear_masks() const;
  /// What a person should know about names that are not understood.
  std::vector<std::string> notes() const;

 private:
  using Place = std::pair<int, std::string>;  // layer and tensor
  const std::string* key_of(int layer, const std::string& name) const;
  const std::string* only(const std::map<Place, std::vector<std::string>>& names, const Place& place) const;
  void read_names();
  std::string path_;
  Sidecar sidecar_;
  std::optional<TensorFile> file_;
  std::optional<std::string> weights_;  // the .npy
  std::map<Place, std::vector<std::string>> exact_, fitting_;
  std::vector<std::string> unknown_;
  std::vector<int> layers_{-1};
};

/// "layer4." or nothing.
std::string layer_prefix(int layer);

}  // namespace qkv::cli
