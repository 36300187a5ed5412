#include "run_cases/values.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace run_cases {
namespace {

constexpr size_t kDeepest = 16;

std::optional<Number> read_number(const Json& json) {
  constexpr Number kInfinity = std::numeric_limits<Number>::infinity();
  if (json.is_null()) return std::nullopt;
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json == "nan") return std::numeric_limits<Number>::quiet_NaN();
  if (json == "inf") return kInfinity;
  if (json == "-inf") return -kInfinity;
  throw Malformed(fmt::format("expected a number, true, false, \"nan\", \"inf\" or \"-inf\", got {}", json.dump()));
}

/// `deepest`: how many lists there are around a number, as far as it is known.
void append(const Json& json, size_t depth, Values& to, std::optional<size_t>& deepest) {
  if (!json.is_array()) {
    if (deepest.value_or(depth) != depth) throw Malformed("a list holds numbers and lists side by side");
    deepest = depth;
    to.numbers.push_back(read_number(json));
    return;
  }
  if (depth == kDeepest) throw Malformed(fmt::format("more than {} lists around a number", kDeepest));
  if (depth == to.shape.size()) to.shape.push_back(int64_t(json.size()));
  if (to.shape[depth] != int64_t(json.size())) throw Malformed("lists beside each other differ in length");
  for (const Json& element : json) append(element, depth + 1, to, deepest);
}

bool is_number(const Json& json) {
  return json.is_number() || json.is_boolean() || json == "nan" || json == "inf" || json == "-inf";
}

/// On one line, whatever bytes are in it.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

bool agree(Number got, Number expected, Tolerance tolerance) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected) || std::isinf(got)) return got == expected;
  return std::abs(got - expected) <= tolerance.absolute + tolerance.relative * std::abs(expected);
}

std::string index_text(int64_t flat, const std::vector<int64_t>& shape) {
  std::string text;
  for (size_t axis = shape.size(); axis-- > 0; flat /= shape[axis])
    text = fmt::format("{}{}{}", flat % shape[axis], text.empty() ? "" : ",", text);
  return text.empty() ? "" : "[" + text + "]";
}

}  // namespace

Number Values::at(int64_t i) const {
  if (i < 0 || i >= size()) throw Malformed(fmt::format("{} numbers where more are needed", size()));
  const std::optional<Number>& number = numbers[size_t(i)];
  if (!number) throw Malformed("null among the inputs");
  return *number;
}

Values read_values(const Json& json) {
  Values values;
  std::optional<size_t> deepest;
  append(json, 0, values, deepest);
  if (deepest && *deepest != values.shape.size()) throw Malformed("a list holds numbers and lists side by side");
  return values;
}

Values read_values(const Json& json, const std::vector<int64_t>& shape) {
  Values values = read_values(json);
  int64_t size = 1;
  for (const int64_t n : shape) size *= n;
  if (size != values.size())
    throw Malformed(fmt::format("{} numbers cannot have the shape {}", values.size(), shape_text(shape)));
  values.shape = shape;
  return values;
}

std::vector<int64_t> read_shape(const Json& json) {
  std::vector<int64_t> shape;
  if (!json.is_array()) throw Malformed(fmt::format("expected a list of sizes, got {}", json.dump()));
  for (const Json& size : json) {
    if (!size.is_number_integer()) throw Malformed(fmt::format("expected a size, got {}", size.dump()));
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

int64_t read_count(const Json& json) {
  constexpr int64_t kMost = 1'000'000;
  if (!json.is_number_integer() || std::abs(json.get<double>()) > double(kMost))
    throw Malformed(fmt::format("expected a number up to {}, got {}", kMost, json.dump()));
  return json.get<int64_t>();
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "{";
  for (const int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "}";
}

std::string number_text(Number number) {
  const bool whole = std::abs(number) < 1e18L && number == std::trunc(number);
  return whole ? fmt::format("{}", int64_t(number)) : fmt::format("{:.9g}", double(number));
}

std::optional<Difference> first_difference(const Values& got, const Values& expected, Tolerance tolerance) {
  for (int64_t i = 0; i < expected.size(); ++i) {
    const std::optional<Number>& want = expected.numbers[size_t(i)];
    if (!want || agree(got.at(i), *want, tolerance)) continue;
    return Difference{index_text(i, got.shape), got.at(i), *want};
  }
  return std::nullopt;
}

Json number_json(Number number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  if (number != std::trunc(number) || std::abs(number) > 0x1p63L) return double(number);
  return number < 0 ? Json(int64_t(number)) : Json(uint64_t(number));
}

std::string first_difference(const Json& got, const Json& expected, Tolerance tolerance) {
  const auto sentence = [&] { return fmt::format(": got {} expected {}", text_of(got), text_of(expected)); };
  if (expected.is_null()) return "";
  if (is_number(got) && is_number(expected))
    return agree(*read_number(got), *read_number(expected), tolerance) ? "" : sentence();
  if (got.type() != expected.type()) return sentence();
  if (!expected.is_structured()) return got == expected ? "" : sentence();
  if (got.size() != expected.size()) return fmt::format(": got {} entries expected {}", got.size(), expected.size());
  for (const auto& [key, value] : expected.items()) {
    const bool list = expected.is_array();
    if (!list && !got.contains(key)) return fmt::format(".{} is missing", key);
    const std::string inside = first_difference(list ? got[std::stoul(key)] : got[key], value, tolerance);
    if (!inside.empty()) return list ? fmt::format("[{}]{}", key, inside) : fmt::format(".{}{}", key, inside);
  }
  return "";
}

}  // namespace run_cases
