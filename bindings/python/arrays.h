// Arrays of Python as views: NumPy, PyTorch and whatever else speaks DLPack or the buffer protocol, on the CPU, without a copy.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string_view>
#include <vector>

#include "qkv/backward.h"

namespace qkv::python {

namespace nb = nanobind;

/// Views of the arrays of one call. Keeps the arrays alive.
class Arrays {
 public:
  /// Any strides, negative ones too, read-only or not. None: no view. bfloat16 is an array of uint16 in a tuple
  /// (array, "bfloat16") where the array's own library has no word for it.
  View<const void> read(std::string_view name, nb::handle array);
  /// Throws TypeError where the array is read-only.
  View<void> write(std::string_view name, nb::handle array);

 private:
  template <class Array> auto view(std::string_view name, nb::handle array);
  std::vector<nb::ndarray<nb::ro>> kept_;
  std::vector<nb::object> objects_;
};

/// The tensors of a call by their names in Inputs; other names are Inputs::parameters. `names` outlives the inputs.
Inputs inputs_of(const nb::dict& tensors, std::optional<uint64_t> dropout_seed, Arrays& arrays);
Outputs outputs_of(const nb::dict& tensors, Arrays& arrays);
Upstream upstream_of(const nb::dict& tensors, Arrays& arrays);
Gradients gradients_of(const nb::dict& tensors, bool add, Arrays& arrays);

}  // namespace qkv::python
