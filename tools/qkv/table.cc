#include "qkv/table.h"

#include <algorithm>

#include <fmt/format.h>

#include "qkv/fold.h"

namespace qkv::cli {

namespace {

constexpr int kGap = 2, kLongText = 24, kShortText = 4;
constexpr int kLeftOut = -1;  // as a width

int line_width(const std::vector<int>& widths) {
  int sum = -kGap;
  for (const int width : widths) sum += width == kLeftOut ? 0 : width + kGap;
  return sum;
}

}  // namespace

std::vector<int> Table::natural_widths() const {
  std::vector<int> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(display_width(columns_[c].title));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  return widths;
}

/// Widths of the columns, made to fit into `room` as far as they can be.
std::vector<int> Table::widths_in(int room) const {
  std::vector<int> widths = natural_widths();
  const auto cut_to = [&](int least) {
    while (line_width(widths) > room) {
      int* widest = nullptr;
      for (size_t c = 0; c < widths.size(); ++c) {
        if (columns_[c].narrow == Narrow::kCut && widths[c] > least && (widest == nullptr || widths[c] > *widest))
          widest = &widths[c];
      }
      if (widest == nullptr) return;
      --*widest;
    }
  };
  cut_to(kLongText);
  for (const Narrow which : {Narrow::kFirst, Narrow::kDrop}) {
    for (size_t c = widths.size(); c-- > 0 && line_width(widths) > room;) {
      if (columns_[c].narrow == which) widths[c] = kLeftOut;
    }
  }
  cut_to(kShortText);
  return widths;
}

std::string Table::text(const Screen& screen, int indent) const {
  const std::vector<int> widths = screen.terminal ? widths_in(screen.columns - indent) : natural_widths();
  const std::string margin(static_cast<size_t>(indent), ' ');
  const auto line = [&](const auto& cell_of) {
    std::string text;
    bool first = true;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (widths[c] == kLeftOut) continue;
      text += (first ? "" : std::string(kGap, ' ')) + fit(cell_of(c), widths[c], columns_[c].side, !screen.unicode);
      first = false;
    }
    text.resize(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::string all = line([&](size_t c) { return columns_[c].title; });
  if (!all.empty()) all = margin + faint(screen.colors) + all + plain(screen.colors) + "\n";
  for (const auto& row : rows_) all += margin + line([&](size_t c) { return row[c]; }) + "\n";
  std::string left_out;
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (widths[c] == kLeftOut && !columns_[c].title.empty())
      left_out += (left_out.empty() ? "" : ", ") + columns_[c].title;
  }
  return left_out.empty() ? all : all + fold(fmt::format("{}(no room for: {})\n", margin, left_out), screen);
}

}  // namespace qkv::cli
