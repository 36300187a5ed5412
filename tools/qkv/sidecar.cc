#include "qkv/sidecar.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

using json = nlohmann::ordered_json;  // what others wrote keeps its order
namespace fs = std::filesystem;

constexpr uintmax_t kMostBytes = uintmax_t{256} << 20;
constexpr const char* kKeys[] = {"tokens", "scale", "attention", "bfloat16"};

[[noreturn]] void refuse(const std::string& path, const char* key, const char* expected) {
  throw FileError(
      fmt::format("{}: \"{}\": expected {}; mend it, or take it away from beside the tensors", path, key, expected));
}

std::optional<double> scale_of(const json& object, const std::string& path) {
  if (!object.contains("scale") || object["scale"].is_null()) return std::nullopt;
  if (!object["scale"].is_number() || !std::isfinite(object["scale"].get<double>()))
    refuse(path, "scale", "a finite number");
  return object["scale"].get<double>();
}

std::string attention_of(const json& object, const std::string& path) {
  if (!object.contains("attention") || object["attention"].is_null()) return "";
  if (!object["attention"].is_string()) refuse(path, "attention", "a text such as \"causal | softmax\"");
  return object["attention"].get<std::string>();
}

std::vector<std::string> names_of(const json& object, const std::string& path) {
  std::vector<std::string> names;
  if (!object.contains("bfloat16")) return names;
  const json& list = object["bfloat16"];
  if (!list.is_array() || !std::ranges::all_of(list, [](const json& name) { return name.is_string(); }))
    refuse(path, "bfloat16", "a list of names");
  for (const json& name : list) names.push_back(name.get<std::string>());
  return names;
}

}  // namespace

std::string sidecar_path(const std::string& tensors) { return fs::path(tensors).replace_extension(".json").string(); }

std::string read_json_file(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) throw FileError(fmt::format("cannot read {}", path));
  if (size > kMostBytes) throw FileError(fmt::format("{}: expected JSON of at most 256 MiB, got {} bytes", path, size));
  return {std::istreambuf_iterator<char>(file), {}};
}

Sidecar read_sidecar(const std::string& tensors) {
  Sidecar sidecar;
  const std::string path = sidecar_path(tensors);
  std::error_code ignored;
  if (tensors.empty() || !fs::is_regular_file(path, ignored)) return sidecar;
  const json object = json::parse(read_json_file(path), nullptr, false);
  if (object.is_discarded())
    throw FileError(fmt::format("{} lies beside the tensors and is no JSON; mend it, or take it away", path));
  sidecar.path = path;
  if (!object.is_object()) return sidecar;
  sidecar.text = object.dump(-1, ' ', false, json::error_handler_t::replace);
  sidecar.scale = scale_of(object, path);
  sidecar.attention = attention_of(object, path);
  sidecar.bfloat16 = names_of(object, path);
  return sidecar;
}

std::string sidecar_text(const Sidecar& of_input, const Sidecar& of_results) {
  json object = of_input.text.empty() ? json::object() : json::parse(of_input.text);
  for (const char* key : {"scale", "attention", "bfloat16"}) object.erase(key);
  if (of_results.scale) object["scale"] = *of_results.scale;
  if (!of_results.attention.empty()) object["attention"] = of_results.attention;
  if (!of_results.bfloat16.empty()) object["bfloat16"] = of_results.bfloat16;
  return object.dump(1) + "\n";
}

SidecarPlace place_of_sidecar(const std::string& tensors, const Sidecar& of_input) {
  const std::string path = sidecar_path(tensors);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return SidecarPlace::kFree;
  const json object = fs::is_regular_file(path, ignored) ? json::parse(read_json_file(path), nullptr, false) : json();
  if (!object.is_object()) return SidecarPlace::kOther;
  const json kept = of_input.text.empty() ? json::object() : json::parse(of_input.text);
  bool known = false;
  for (const auto& [key, value] : object.items()) {
    const bool own = std::ranges::find(kKeys, key) != std::end(kKeys);
    known = known || own;
    if (!own && key != "scheme" && !kept.contains(key)) return SidecarPlace::kOther;
  }
  return known ? SidecarPlace::kSidecar : SidecarPlace::kOther;
}

void expect_no_other_json(const std::string& tensors, const Sidecar& of_input) {
  if (place_of_sidecar(tensors, of_input) != SidecarPlace::kOther) return;
  throw OptionError(
      fmt::format("{} would be replaced by what belongs to {}, and is something else; choose another name for "
                  "the results",
                  sidecar_path(tensors), tensors));
}

}  // namespace qkv::cli
