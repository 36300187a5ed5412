#include "qkv/dump.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

bool is_npz(const std::string& path) { return path.ends_with(".npz"); }

/// The N of "layerN.NAME".
std::optional<int> layer_of(std::string_view name) {
  constexpr std::string_view kWord = "layer";
  if (!name.starts_with(kWord)) return std::nullopt;
  int layer = 0;
  const char* first = name.data() + kWord.size();
  const auto [end, error] = std::from_chars(first, name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0 || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return layer;
}

}  // namespace

std::string layer_prefix(int layer) { return layer < 0 ? "" : fmt::format("layer{}.", layer); }

Array read_tensor(const std::string& where) {
  const size_t colon = where.rfind(".npz:");
  if (colon != where.npos) return Npz(where.substr(0, colon + 4)).read(where.substr(colon + 5));
  if (!is_npz(where)) return read_npy(where);
  const Npz npz(where);
  if (npz.names().size() == 1) return npz.read(npz.names().front());
  throw OptionError(fmt::format("{} holds {} arrays; say which: {}:NAME", where, npz.names().size(), where));
}

Dump::Dump(const std::string& path) : path_(path) {
  if (!is_npz(path)) {
    weights_ = path;
    return;
  }
  npz_.emplace(path);
  std::set<int> layers;
  for (const std::string& name : npz_->names()) {
    if (const auto layer = layer_of(name)) layers.insert(*layer);
  }
  if (!layers.empty()) layers_.assign(layers.begin(), layers.end());
}

void Dump::expect_layer(int layer) const {
  if (std::find(layers_.begin(), layers_.end(), layer) != layers_.end()) return;
  if (layers_.front() < 0)
    throw OptionError(
        fmt::format("--layer {}: {} has no layers (names such as layer0.q); leave the option out", layer, path_));
  throw OptionError(fmt::format("--layer {}: {} has the layers {}", layer, path_, fmt::join(layers_, ", ")));
}

std::optional<std::string> Dump::key_of(int layer, const std::string& name) const {
  if (!npz_) return std::nullopt;
  for (const std::string& key : {layer_prefix(layer) + name, name}) {
    if (npz_->contains(key)) return key;
  }
  return std::nullopt;
}

bool Dump::has(int layer, const std::string& name) const {
  return weights_ ? name == "weights" : key_of(layer, name).has_value();
}

std::optional<Array> Dump::find(int layer, const std::string& name) const {
  if (weights_) return name == "weights" ? std::optional<Array>(read_npy(*weights_)) : std::nullopt;
  const auto key = key_of(layer, name);
  return key ? std::optional<Array>(npz_->read(*key)) : std::nullopt;
}

}  // namespace qkv::cli
