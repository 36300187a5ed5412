#include "qkv/typed.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

using Row = std::vector<double>;

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t first = 0; first <= text.size();) {
    const size_t last = std::min(text.find(at, first), text.size());
    parts.push_back(text.substr(first, last - first));
    first = last + 1;
  }
  return parts;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

std::optional<double> number_in(std::string_view text) {
  text = trimmed(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Begins like a number and has the marks between numbers: nobody calls a file so.
bool is_meant_as_list(std::string_view text) {
  return number_in(text.substr(0, text.find_first_of(",;"))) && text.find('/') == text.npos;
}

/// Nothing where the text names a file.
std::optional<std::vector<Row>> rows_of(std::string_view text, const std::string& name) {
  if (!is_meant_as_list(text)) return std::nullopt;
  std::vector<Row> rows;
  for (std::string_view line : split(text, ';')) {
    rows.emplace_back();
    for (std::string_view word : split(line, ',')) {
      const auto value = number_in(word);
      if (!value) throw OptionError(fmt::format("{}: expected a number, got '{}' in '{}'", name, word, text));
      rows.back().push_back(*value);
    }
    if (rows.back().size() != rows.front().size()) {
      throw OptionError(fmt::format("{}: row {} has {} numbers and row 0 has {} in '{}'", name, rows.size() - 1,
                                    rows.back().size(), rows.front().size(), text));
    }
  }
  return rows;
}

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

DType type_of(const std::string& name) {
  if (is_one_of(name, {"keep_mask", "ignore_mask"})) return DType::kBool;
  if (is_one_of(name, {"key_lengths", "document_ids", "query_documents", "key_documents", "q_offset", "key_start",
                       "cumulative_query_lengths", "cumulative_key_lengths", "heads"}))
    return DType::kInt32;
  return DType::kFloat64;
}

bool is_matrix(const std::string& name) {
  return is_one_of(name, {"q", "k", "v", "x", "wq", "wk", "wv", "wo", "keep_mask", "ignore_mask", "bias", "dout"});
}

/// Throws OptionError where a tensor of this type cannot hold the number.
void put(double value, DType type, const std::string& name, void* to, size_t at) {
  if (type == DType::kFloat64) {
    static_cast<double*>(to)[at] = value;
  } else if (type == DType::kBool) {
    if (value != 0 && value != 1)
      throw OptionError(
          fmt::format("{}: expected 0 or 1, got {}; -inf and other numbers belong into a bias", name, value));
    static_cast<bool*>(to)[at] = value == 1;
  } else {
    if (value != std::floor(value) || std::abs(value) > std::numeric_limits<int32_t>::max())
      throw OptionError(fmt::format("{}: expected whole numbers, got {}", name, value));
    static_cast<int32_t*>(to)[at] = static_cast<int32_t>(value);
  }
}

}  // namespace

std::optional<Array> typed_tensor(const std::string& text, const std::string& name) {
  const auto rows = rows_of(text, name);
  if (!rows) return std::nullopt;
  const auto height = static_cast<int64_t>(rows->size()), width = static_cast<int64_t>(rows->front().size());
  const DType type = type_of(name);
  Array array(type, height > 1 || is_matrix(name) ? std::vector<int64_t>{height, width} : std::vector<int64_t>{width});
  size_t at = 0;
  for (const Row& row : *rows) {
    for (double value : row) put(value, type, name, array.data(), at++);
  }
  return array;
}

}  // namespace qkv::cli
