#include "qkv/parameters.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "core/elements.h"
#include "core/format.h"

namespace qkv::nn {
namespace {

using Names = std::vector<std::string>;

/// "a, b, c and 5 more".
std::string list_of(const Names& names) {
  constexpr size_t kMost = 8;
  if (names.empty()) return "none";
  std::string list;
  for (size_t n = 0; n < std::min(names.size(), kMost); ++n) list += (n == 0 ? "" : ", ") + names[n];
  return names.size() <= kMost ? list : fmt::format("{} and {} more", list, names.size() - kMost);
}

std::string shape_of(const Array& a) { return fmt::format("{{{}}}", fmt::join(a.shape(), ", ")); }

void check_names(std::span<const NamedParameter> parameters, const Safetensors& file, const LoadOptions& options) {
  Names missing, unexpected;
  std::set<std::string, std::less<>> known;
  for (const auto& [name, p] : parameters) {
    known.insert(options.prefix + name);
    if (!file.contains(options.prefix + name)) missing.push_back(options.prefix + name);
  }
  if (options.unexpected == Unexpected::kRefuse)
    std::ranges::copy_if(file.names(), std::back_inserter(unexpected), [&](const std::string& name) {
      return name.starts_with(options.prefix) && !known.contains(name);
    });
  if (missing.empty() && unexpected.empty()) return;
  option_error(
      "load_parameters: the file lacks {}; it has, without a parameter, {}; say the prefix of its names (now \"{}\"), "
      "or make the layer with the options that it was saved with",
      list_of(missing), list_of(unexpected), options.prefix);
}

/// Whether every number of type `from` is one of type `to`.
bool widens(DType from, DType to) {
  return from == to || (is_floating(from) && size_of(from) < size_of(to) && size_of(to) > 2);
}

void check_fit(const std::string& name, const Array& value, const Array& found) {
  if (found.shape() != value.shape())
    shape_error("load_parameters: {} is {}, and the file's tensor {}; make the layer with the sizes of the file", name,
                shape_of(value), shape_of(found));
  if (!widens(found.dtype(), value.dtype()))
    dtype_error("load_parameters: {} is {}, and the file's tensor {}, whose numbers it cannot hold; convert them", name,
                value.dtype(), found.dtype());
}

void assign(const Array& from, Array& to) {
  if (from.dtype() == to.dtype()) {
    std::memcpy(to.data(), from.data(), to.bytes());
    return;
  }
  const int64_t sizes[] = {from.size()};
  const View<const void> flat(from.data(), from.dtype(), Layout(sizes));
  with_floating(to.dtype(), [&]<class T>(T*) {
    if constexpr (sizeof(T) >= sizeof(float)) load(flat, 0, 1, from.size(), static_cast<T*>(to.data()));
  });
}

}  // namespace

void load_parameters(std::span<const NamedParameter> parameters, const Safetensors& file, const LoadOptions& options) {
  check_names(parameters, file, options);
  std::vector<Array> found;
  for (const auto& [name, p] : parameters) {
    found.push_back(file.read(options.prefix + name));
    check_fit(options.prefix + name, p->value, found.back());
  }
  for (size_t n = 0; n < parameters.size(); ++n) {
    assign(found[n], parameters[n].parameter->value);
    parameters[n].parameter->changed();
  }
}

std::vector<NamedTensor> tensors_of(std::span<const NamedParameter> parameters, const std::string& prefix) {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, p] : parameters) tensors.push_back({prefix + name, std::as_const(p->value).view()});
  return tensors;
}

}  // namespace qkv::nn
