// Runs the entries of a case file through the public interface of qkv and compares.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "run_cases/values.h"

namespace run_cases {

/// Something that this program does not run: an operation, an option, an expected name.
struct NotSupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What an operation gave, by the names of the schema: tensors, or text and whatever else is no tensor.
using Answer = std::map<std::string, std::variant<Values, Json>>;
/// Runs one operation. Throws what qkv throws, NotSupported, Malformed.
using Operation = Answer (*)(const Json& inputs, const Json& options);

/// By the names of the schema.
const std::map<std::string_view, Operation>& operations();

enum class Verdict { kPass, kFail, kUnsupported };
const char* name(Verdict);

struct Outcome {
  std::string id;
  Verdict verdict;
  std::string detail;  // why it is no pass
};

/// Runs every entry of a parsed file; a malformed one fails. Throws Malformed where the file is no list of entries.
std::vector<Outcome> run_file(const Json& file);

/// The same of a file on disk; the message names it.
std::vector<Outcome> run_file(const std::string& path);

}  // namespace run_cases
