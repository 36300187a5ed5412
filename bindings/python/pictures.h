// Pictures and explanations of arrays: what `qkv see` and `qkv explain` make of files.
#pragma once
#include <nanobind/nanobind.h>

namespace qkv::python {

void add_pictures(nanobind::module_& m);

}  // namespace qkv::python
