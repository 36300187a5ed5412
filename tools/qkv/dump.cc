#include "qkv/dump.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "qkv/error.h"
#include "qkv/file_kind.h"
#include "qkv/names.h"

namespace qkv::cli {

namespace {

/// "a, b, c and 4 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  const size_t shown = std::min(names.size(), kMost);
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return shown < names.size() ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

std::vector<int> layers_in(const std::map<std::pair<int, std::string>, std::vector<std::string>>& names) {
  std::set<int> layers;
  for (const auto& [place, keys] : names) {
    if (place.first >= 0) layers.insert(place.first);
  }
  return {layers.begin(), layers.end()};
}

/// Float32 numbers that were bfloat16 before they were written.
Array narrowed(const Array& wide, const std::string& name, const std::string& sidecar) {
  if (wide.dtype() != DType::kFloat32)
    throw FileError(fmt::format("{} says that {} is bfloat16 kept as float32, but it is {}; take it out of the list",
                                sidecar, name, qkv::name(wide.dtype())));
  Array narrow(DType::kBFloat16, wide.shape());
  const auto from = wide.view().as<const float>();
  const auto to = narrow.view().as<bfloat16>();
  for (int64_t i = 0; i < from.shape[0]; ++i) {
    for (int64_t j = 0; j < from.shape[1]; ++j) {
      for (int64_t k = 0; k < from.shape[2]; ++k) {
        for (int64_t l = 0; l < from.shape[3]; ++l) to(i, j, k, l) = bfloat16(from(i, j, k, l));
      }
    }
  }
  return narrow;
}

}  // namespace

std::string layer_prefix(int layer) { return layer < 0 ? "" : fmt::format("layer{}.", layer); }

Dump::Dump(const std::string& path) : path_(path), sidecar_(read_sidecar(path)) {
  if (!TensorFile::is_one(path)) {
    expect_tensors(path);
    weights_ = path;
    return;
  }
  file_.emplace(path);
  read_names();
}

void Dump::read_names() {
  for (const std::string& name : file_->names()) {
    const auto meaning = understand(name);
    if (!meaning) unknown_.push_back(name);
    else (meaning->exact ? exact_ : fitting_)[{meaning->layer, meaning->tensor}].push_back(name);
  }
  std::vector<int> layers = layers_in(exact_);
  // Names of the format that belong to every layer leave it to the others to say which there are, unless they are complete.
  const bool complete = exact_.contains({-1, "q"}) || exact_.contains({-1, "weights"});
  if (layers.empty() && !complete) layers = layers_in(fitting_);
  if (!layers.empty()) layers_ = std::move(layers);
}

void Dump::expect_layer(int layer) const {
  if (std::find(layers_.begin(), layers_.end(), layer) != layers_.end()) return;
  if (path_.empty()) throw OptionError(fmt::format("--layer {}: there is no FILE; leave the option out", layer));
  if (layers_.front() < 0)
    throw OptionError(
        fmt::format("--layer {}: {} has no layers (names such as layer0.q); leave the option out", layer, path_));
  throw OptionError(fmt::format("--layer {}: {} has the layers {}", layer, path_, fmt::join(layers_, ", ")));
}

const std::string* Dump::only(const std::map<Place, std::vector<std::string>>& names, const Place& place) const {
  const auto at = names.find(place);
  if (at == names.end()) return nullptr;
  if (at->second.size() == 1) return &at->second.front();
  throw OptionError(fmt::format("{}{} can be each of {} in {}; name the one that is meant {}{}",
                                layer_prefix(place.first), place.second, some_of(at->second), path_,
                                layer_prefix(place.first), place.second));
}

const std::string* Dump::key_of(int layer, const std::string& name) const {
  for (const auto* names : {&exact_, &fitting_}) {
    for (const int number : {layer, -1}) {
      if (const std::string* key = only(*names, {number, name})) return key;
    }
  }
  return nullptr;
}

bool Dump::has(int layer, const std::string& name) const {
  return weights_ ? name == "weights" : key_of(layer, name) != nullptr;
}

std::optional<std::string> Dump::other_name(int layer, const std::string& name) const {
  const std::string* key = key_of(layer, name);
  return key == nullptr || understand(*key)->exact ? std::nullopt : std::optional(*key);
}

std::optional<Array> Dump::find(int layer, const std::string& name) const {
  const std::string* key = key_of(layer, name);
  if (weights_ && name == "weights") key = &name;
  if (key == nullptr) return std::nullopt;
  Array found = weights_ ? read_array(*weights_) : file_->read(*key);
  const bool was_bfloat16 = std::ranges::find(sidecar_.bfloat16, *key) != sidecar_.bfloat16.end();
  return was_bfloat16 ? narrowed(found, *key, sidecar_.path) : std::move(found);
}

std::vector<std::string> Dump::notes() const {
  if (unknown_.empty()) return {};
  return {fmt::format("not used, because their names say nothing here: {}", some_of(unknown_))};
}

void Dump::expect_clear_masks() const {
  const auto is_mask = [](const std::string& name) { return name.ends_with("mask"); };
  const auto at = std::ranges::find_if(unknown_, is_mask);
  if (at == unknown_.end()) return;
  throw FileError(fmt::format(
      "{} has {}, which does not say what true means; name it keep_mask (true may be attended to) or ignore_mask, or give "
      "--keep-mask or --ignore-mask",
      path_, *at));
}

}  // namespace qkv::cli
