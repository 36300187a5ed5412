// The .json beside a file of tensors: what tensors cannot say.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace qkv::cli {

/// {"tokens": [["a", ","]], "scale": 0.125, "attention": "causal | softmax", "bfloat16": ["out"]}, all of it optional; other
/// keys stay as they are. tokens.h reads the tokens.
struct Sidecar {
  std::string path;                   ///< empty: there is none
  std::string text;                   ///< the JSON object
  std::optional<double> scale;        ///< of the scores
  std::string attention;              ///< as Attention::parse reads it
  std::vector<std::string> bfloat16;  ///< tensors that are float32 in the file because .npy has no bfloat16
};

/// NAME.json of NAME.npz, NAME.npy, NAME.safetensors.
std::string sidecar_path(const std::string& tensors);
/// All of a JSON file of at most 256 MiB, not parsed. Throws FileError.
std::string read_json_file(const std::string& path);

/// Throws FileError where the file is there and is no JSON, or one of these keys is not as above. (A list of tokens alone is
/// fine.)
Sidecar read_sidecar(const std::string& tensors);

/// The JSON object for results: what `of_input` says, but with this scale, attention and bfloat16 (absent: none).
std::string sidecar_text(const Sidecar& of_input, const Sidecar& of_results);

/// What lies where the sidecar of these tensors belongs: nothing, a sidecar (an object with one of the keys, and no others than
/// those that `of_input` brings again), something else.
enum class SidecarPlace : uint8_t { kFree, kSidecar, kOther };
SidecarPlace place_of_sidecar(const std::string& tensors, const Sidecar& of_input);

/// Throws OptionError where something else than a sidecar lies at the place of one: a JSON that others wrote.
void expect_no_other_json(const std::string& tensors, const Sidecar& of_input);

}  // namespace qkv::cli
