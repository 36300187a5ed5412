#include "qkv/table.h"

#include <algorithm>

namespace qkv::cli {

std::string Table::text(const Screen& screen) const {
  std::vector<int> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(display_width(columns_[c].title));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (size_t c = 0; c < columns_.size(); ++c)
      text += (c == 0 ? "" : "  ") + fit(cell_of(c), widths[c], columns_[c].side, !screen.unicode);
    text.resize(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::string all = line([&](size_t c) { return columns_[c].title; });
  if (!all.empty()) all = faint(screen.colors) + all + plain(screen.colors) + "\n";
  for (const auto& row : rows_) all += line([&](size_t c) { return row[c]; }) + "\n";
  return all;
}

}  // namespace qkv::cli
