// Tensors of a case file: nested lists of numbers, booleans, and the strings "nan", "inf", "-inf".
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace run_cases {

using Json = nlohmann::json;

/// The file is not of the schema.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// long double holds every 64-bit integer exactly, on x86-64 and AArch64 under Linux.
using Number = long double;

/// Row by row. An absent number (null) is not checked.
struct Values {
  std::vector<int64_t> shape;
  std::vector<std::optional<Number>> numbers;

  int64_t size() const { return int64_t(numbers.size()); }
  /// The number at a flat index. Throws Malformed where it is null or there are fewer.
  Number at(int64_t i) const;
};

/// Reads nested lists. Throws Malformed where their lengths differ or something else stands in them.
Values read_values(const Json&);

/// Reads nested lists as a tensor of this shape: only the flat order counts, so that empty tensors can be told.
Values read_values(const Json&, const std::vector<int64_t>& shape);

std::vector<int64_t> read_shape(const Json&);

/// A number of heads, rows, ...: at most a million, as memory is made for them. Throws Malformed for other things.
int64_t read_count(const Json&);

/// "{2, 3}"
std::string shape_text(const std::vector<int64_t>&);
/// Short, with "nan", "inf", "-inf".
std::string number_text(Number);
/// As the schema writes it: exact integers, "nan", "inf", "-inf".
Json number_json(Number);

struct Tolerance {
  double absolute = 0, relative = 0;
};

/// The first element that is not as expected.
struct Difference {
  std::string index;  // "[0,1,2]", empty for a lone number
  Number got = 0, expected = 0;
};

/// abs(got - expected) <= absolute + relative * abs(expected); infinities are equal, NaN stands for NaN.
/// Both have as many numbers.
std::optional<Difference> first_difference(const Values& got, const Values& expected, Tolerance);

/// The same of text, lists and objects: "[1].name: got 2 expected 3"; empty where they agree. Numbers within the tolerance, text
/// and names exactly; null is not checked.
std::string first_difference(const Json& got, const Json& expected, Tolerance);

}  // namespace run_cases
