// Values of a case file as tensors of qkv, and back.
#pragma once
#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "qkv/view.h"
#include "run_cases/runner.h"

namespace run_cases {

/// A contiguous tensor that owns its memory. Default: none.
class Array {
 public:
  Array() = default;
  Array(qkv::DType type, const std::vector<int64_t>& shape);
  Array(qkv::DType type, const Values& values);

  qkv::View<void> view();
  qkv::View<const void> view() const { return const_cast<Array*>(this)->view(); }
  template <class T> qkv::View<T> as() { return view().as<T>(); }
  template <class T> qkv::View<const T> as() const { return const_cast<Array*>(this)->as<T>(); }
  Values values() const;

 private:
  Number get(int64_t i) const;
  void set(int64_t i, Number value);

  qkv::DType type_ = qkv::DType::kFloat32;
  std::vector<int64_t> shape_;
  std::vector<std::byte> bytes_;
  bool given_ = false;
};

/// A member of an object. Throws Malformed where it is missing.
const Json& required(const Json& object, const char* key);

/// Throws NotSupported for the first key that is not known: nothing that a file asks for is passed over in silence.
template <class Names> void only_known(const Json& object, const char* kind, const Names& known) {
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    for (const auto& name : known) found |= key == name;
    if (!found) throw NotSupported(fmt::format("{} \"{}\"", kind, key));
  }
}

}  // namespace run_cases
