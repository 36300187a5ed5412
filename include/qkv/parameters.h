// Parameters of layers and models in .safetensors, under PyTorch's names: state goes over in both directions.
//
//   qkv::nn::load_parameters(layer, qkv::Safetensors("model.safetensors"), {.prefix = "encoder.layers.0."});
//   qkv::nn::save_parameters("layer.safetensors", layer);          // in Python: layer.load_state_dict(load_file("layer.safetensors"))
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "qkv/io.h"
#include "qkv/optim.h"

namespace qkv::nn {

/// What becomes of tensors of a file that no parameter has the name of.
enum class Unexpected : uint8_t { kRefuse, kIgnore };

/// Which tensors of a file belong to a layer, and under which names.
struct LoadOptions {
  std::string
      prefix{};  ///< a parameter's tensor is called prefix + its name; tensors without the prefix are none of the layer's
  Unexpected unexpected = Unexpected::kRefuse;
};

/// Reads every parameter from the tensor of its name. Nothing is written before all were found to fit; numbers of a narrower
/// floating type are widened exactly.
/// Throws OptionError: parameters without a tensor, tensors without a parameter, with both lists; ShapeError, DtypeError: the first
/// tensor that does not fit, with the parameter's name and shape or type; FileError as Safetensors::read().
QKV_EXPORT void load_parameters(std::span<const NamedParameter>, const Safetensors&, const LoadOptions& = {});
template <class Layer> void load_parameters(Layer& layer, const Safetensors& file, const LoadOptions& options = {}) {
  load_parameters(std::span<const NamedParameter>(parameters_of(layer)), file, options);
}

/// The parameters as tensors called prefix + their names, for write_safetensors(); valid as long as they stay where they are.
QKV_EXPORT std::vector<NamedTensor> tensors_of(std::span<const NamedParameter>, const std::string& prefix = {});

/// Writes every parameter as it is in type and shape, and texts beside them. Throws as write_safetensors().
template <class Layer>
void save_parameters(const std::string& path, Layer& layer, const std::string& prefix = {},
                     const std::map<std::string, std::string, std::less<>>& metadata = {}) {
  write_safetensors(path, tensors_of(parameters_of(layer), prefix), metadata);
}

}  // namespace qkv::nn
