// Columns of text that line up on a terminal, whatever script they are in, and fit into its width.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "qkv/labels.h"
#include "qkv/terminal.h"

namespace qkv::cli {

/// What a column gives up where a terminal is narrow: first text longer than 24 columns is cut, then columns are left out,
/// those of kFirst before those of kDrop and the right one before the left one, then text is cut further. Numbers never are.
enum class Narrow : uint8_t { kKeep, kCut, kDrop, kFirst };

class Table {
 public:
  struct Column {
    std::string title;
    Side side = Side::kLeft;
    Narrow narrow = Narrow::kKeep;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// As many cells as columns; safe text.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  /// Without a line of titles where all are empty; every line behind `indent` spaces. Below stands which columns are left out.
  std::string text(const Screen&, int indent = 0) const;

 private:
  std::vector<int> natural_widths() const;
  std::vector<int> widths_in(int room) const;
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace qkv::cli
