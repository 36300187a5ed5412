// Columns of text that line up on a terminal, whatever script they are in.
#pragma once
#include <string>
#include <vector>

#include "qkv/labels.h"
#include "qkv/terminal.h"

namespace qkv::cli {

class Table {
 public:
  struct Column {
    std::string title;
    Side side = Side::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// As many cells as columns; safe text.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  /// Without a line of titles where all are empty.
  std::string text(const Screen&) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace qkv::cli
