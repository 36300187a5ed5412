// Which of some words somebody may have meant.
#pragma once
#include <algorithm>
#include <numeric>
#include <optional>
#include <ranges>
#include <string_view>
#include <utility>
#include <vector>

namespace qkv {

/// Levenshtein's: insertions, deletions and replacements that turn one word into the other.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// The one that differs in at most a third of its letters, if there is one.
inline std::optional<std::string_view> nearest_word(std::string_view word, const std::vector<std::string_view>& known) {
  if (known.empty() || word.size() > 64) return std::nullopt;
  const auto far = [&](std::string_view other) { return edit_distance(word, other); };
  const std::string_view nearest = *std::ranges::min_element(known, {}, far);
  return far(nearest) <= (word.size() + 2) / 3 ? std::optional(nearest) : std::nullopt;
}

}  // namespace qkv
