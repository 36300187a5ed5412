#include "run_cases/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "qkv/error.h"

namespace run_cases {
namespace {

const Json& member(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) throw Malformed(fmt::format("\"{}\" is missing", key));
  return object.at(key);
}

Json member_or(const Json& object, const char* key, Json otherwise) { return object.value(key, std::move(otherwise)); }

Tolerance read_tolerance(const Json& entry) {
  const Json& tolerance = member(entry, "tol");
  return {member(tolerance, "atol").get<double>(), member(tolerance, "rtol").get<double>()};
}

/// Why an answer is not the expected one; empty where it is.
std::string complaint(const std::string& name, const Values& got, const Json& expected, const Json& shapes,
                      Tolerance tolerance) {
  const bool has_shape = shapes.contains(name);
  const Values want = has_shape ? read_values(expected, read_shape(shapes.at(name))) : read_values(expected);
  if (has_shape ? got.shape != want.shape : got.size() != want.size())
    return fmt::format("{} has shape {}, expected {}", name, shape_text(got.shape), shape_text(want.shape));
  const auto difference = first_difference(got, want, tolerance);
  if (!difference) return "";
  return fmt::format("{}{}: got {} expected {}", name, difference->index, number_text(difference->got),
                     number_text(difference->expected));
}

std::string complaint(const std::string& name, const std::variant<Values, Json>& got, const Json& expected,
                      const Json& shapes, Tolerance tolerance) {
  if (const Values* tensor = std::get_if<Values>(&got)) return complaint(name, *tensor, expected, shapes, tolerance);
  const std::string difference = first_difference(std::get<Json>(got), expected, tolerance);
  return difference.empty() ? "" : name + difference;
}

bool equals(const std::variant<Values, Json>& got, const Json& wrong, Tolerance tolerance) {
  if (const Json* text = std::get_if<Json>(&got)) return first_difference(*text, wrong, tolerance).empty();
  const Values values = read_values(wrong);
  const Values& tensor = std::get<Values>(got);
  return tensor.size() == values.size() && !first_difference(tensor, values, tolerance);
}

/// Whether the answer is the one of a faulty implementation, in everything that is known of it.
bool is_known_wrong(const Answer& answer, const Json& known_wrong, Tolerance tolerance) {
  bool compared = false;
  for (const auto& [name, value] : known_wrong.items()) {
    const auto got = answer.find(name);
    if (got == answer.end()) continue;
    if (!equals(got->second, value, tolerance)) return false;
    compared = true;
  }
  return compared;
}

Outcome compare(const std::string& id, const Json& entry, const Answer& answer) {
  const Json &expected = member(entry, "expected"), shapes = member_or(entry, "expected_shape", Json::object());
  const Tolerance tolerance = read_tolerance(entry);
  if (expected.empty()) throw Malformed("\"expected\" is empty");
  for (const auto& [name, value] : expected.items()) {
    const auto got = answer.find(name);
    if (got == answer.end()) throw NotSupported(fmt::format("the expected \"{}\"", name));
    if (const std::string why = complaint(name, got->second, value, shapes, tolerance); !why.empty())
      return {id, Verdict::kFail, why};
  }
  if (is_known_wrong(answer, member_or(entry, "known_wrong", Json::object()), tolerance))
    return {id, Verdict::kFail, "the result is the known wrong one"};
  return {id, Verdict::kPass, ""};
}

Outcome run_operation(const std::string& id, const Json& entry, Operation operation) {
  const Json &inputs = member(entry, "inputs"), options = member_or(entry, "options", Json::object());
  const Json& expected = member(entry, "expected");
  const bool must_refuse = expected.is_object() && expected.contains("error");
  Answer answer;
  try {
    answer = operation(inputs, options);
  } catch (const qkv::ArgumentError& e) {
    if (must_refuse) return {id, Verdict::kPass, ""};
    return {id, Verdict::kFail, fmt::format("the call was refused: {}", e.what())};
  } catch (const qkv::Unsupported& e) {
    throw NotSupported(e.what());
  }
  if (must_refuse)
    return {id, Verdict::kFail, fmt::format("error: the call was accepted, expected {}", expected.at("error").dump())};
  return compare(id, entry, answer);
}

/// A malformed entry fails and keeps no other from its verdict.
Outcome run_entry(const Json& entry, size_t number) {
  std::string id = fmt::format("entry {}", number);
  try {
    id = member(entry, "id").get<std::string>();
    const std::string op = member(entry, "op").get<std::string>();
    const auto known = operations().find(op);
    if (known == operations().end()) return {id, Verdict::kUnsupported, fmt::format("operation {}", op)};
    return run_operation(id, entry, known->second);
  } catch (const NotSupported& e) {
    return {id, Verdict::kUnsupported, e.what()};
  } catch (const Malformed& e) {
    return {id, Verdict::kFail, fmt::format("malformed: {}", e.what())};
  } catch (const Json::exception& e) {
    return {id, Verdict::kFail, fmt::format("malformed: {}", e.what())};
  }
}

}  // namespace

const char* name(Verdict verdict) {
  constexpr std::array<const char*, 3> kNames{"pass", "fail", "unsupported"};
  return kNames[size_t(verdict)];
}

std::vector<Outcome> run_file(const Json& file) {
  if (member(file, "schema_version") != 1) throw Malformed("schema_version is not 1");
  const Json& entries = member(file, "entries");
  if (!entries.is_array()) throw Malformed("\"entries\" is not a list");
  std::vector<Outcome> outcomes;
  for (const Json& entry : entries) outcomes.push_back(run_entry(entry, outcomes.size()));
  return outcomes;
}

std::vector<Outcome> run_file(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw Malformed(fmt::format("{} cannot be opened", path));
  try {
    return run_file(Json::parse(stream));
  } catch (const Json::exception& e) {
    throw Malformed(fmt::format("{}: {}", path, e.what()));
  } catch (const Malformed& e) {
    throw Malformed(fmt::format("{}: {}", path, e.what()));
  }
}

}  // namespace run_cases
