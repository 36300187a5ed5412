#include "qkv/grid.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/ceil_div.h"
#include "qkv/colormap.h"
#include "qkv/labels.h"

namespace qkv::cli {

namespace {

constexpr int kWidestLabel = 16, kTallestLabel = 9, kLinesAround = 12, kLinesWithOneHead = 24;

int digits(int64_t n) { return static_cast<int>(std::to_string(std::max<int64_t>(0, n)).size()); }

int widest(const std::vector<std::string>& labels) {
  int width = 0;
  for (const std::string& label : labels) width = std::max(width, display_width(label));
  return std::min(width, kWidestLabel);
}

/// The steps at which columns have their number, so that numbers do not touch.
int64_t tick_step(const GridPlan& plan, int64_t last_number) {
  const int needed = digits(last_number) + 1;
  for (int64_t step : {1, 2, 5, 10, 20, 50, 100}) {
    if (step * plan.cell_width >= needed) return step;
  }
  return 200;
}

class Renderer {
 public:
  Renderer(const GridPlan& plan, const AxisLabels& labels, const Paint& paint, const Screen& screen, int64_t unit)
      : plan_(plan), labels_(labels), paint_(paint), screen_(screen), unit_(unit) {}

  std::string render() {
    column_labels();
    column_numbers();
    const int64_t step = plan_.half_blocks ? 2 : 1;
    for (int64_t row = 0; row < plan_.cell_rows; row += step) line(row);
    if (plan_.cell_rows / step > kLinesWithOneHead) {  // by then the ones on top have left the screen
      column_numbers();
      column_labels();
    }
    return out_;
  }

 private:
  /// One grapheme under the other, standing on the numbers.
  void column_labels() {
    if (labels_.columns.empty() || plan_.column_factor * unit_ != 1) return;
    std::vector<std::vector<std::string>> letters;
    size_t height = 0;
    for (const std::string& label : labels_.columns) {
      letters.push_back(graphemes(label));
      if (letters.back().size() > kTallestLabel) {
        letters.back().resize(kTallestLabel);
        letters.back().back() = screen_.unicode ? "⋮" : "~";
      }
      height = std::max(height, letters.back().size());
      for (const std::string& letter : letters.back()) {
        if (display_width(letter) > plan_.cell_width) return;
      }
    }
    for (size_t line = 0; line < height; ++line) {
      std::string text(static_cast<size_t>(plan_.label_width + 1), ' ');
      for (const auto& word : letters) {
        const size_t above = height - word.size();
        const std::string letter = line < above ? "" : word[line - above];
        text += fit(fit(letter, std::max(1, display_width(letter)), Side::kLeft, true), plan_.cell_width, Side::kRight,
                    true);
      }
      append_line(text);
    }
  }

  void column_numbers() {
    const int64_t scale = plan_.column_factor * unit_;
    const int64_t step = tick_step(plan_, (plan_.cell_columns - 1) * scale);
    std::string text(static_cast<size_t>(plan_.label_width + 1), ' ');
    for (int64_t c = 0; c < plan_.cell_columns; c += step) {
      const auto width = static_cast<int>(std::min(step, plan_.cell_columns - c)) * plan_.cell_width;
      const std::string number = std::to_string(c * scale);
      // Of wide cells numbers stand over the digits (right), of narrow ones over the first column.
      const bool right = step == 1;
      text += right                                     ? fit(number, width, Side::kRight, true)
              : static_cast<int>(number.size()) > width ? std::string(static_cast<size_t>(width), ' ')
                                                        : fit(number, width, Side::kLeft, true);
    }
    append_line(text);
  }

  void append_line(std::string text) {
    text.resize(text.find_last_not_of(' ') + 1);
    out_ += text + "\n";
  }

  std::string row_label(int64_t cell_row) const {
    const int64_t row = cell_row * plan_.row_factor;
    const std::string number = std::to_string(row * unit_);
    if (labels_.rows.empty()) return fit(number, plan_.label_width, Side::kRight, true);
    const int number_width = digits((plan_.cell_rows - 1) * plan_.row_factor * unit_);
    const std::string& label = labels_.rows[static_cast<size_t>(row * unit_)];  // of many rows the first
    return fit(number, number_width, Side::kRight, true) + " " +
           fit(label, plan_.label_width - number_width - 1, Side::kLeft, !screen_.unicode);
  }

  void line(int64_t row) {
    out_ += row_label(row) + " ";
    for (int64_t c = 0; c < plan_.cell_columns; ++c) {
      if (plan_.half_blocks) half_cells(row, c);
      else whole_cell(paint_(row, c));
    }
    out_ += plain(screen_.colors) + "\n";
  }

  void whole_cell(const CellLook& look) {
    const int width = plan_.cell_width;
    if (screen_.colors == ColorDepth::kNone) {
      out_ += width == 4 ? fit(look.text, 4, Side::kRight, true) : std::string(static_cast<size_t>(width), look.symbol);
      return;
    }
    out_ += background(look.color, screen_.colors);
    if (width == 4) out_ += foreground(readable_on(look.color), screen_.colors) + fit(look.text, 4, Side::kRight, true);
    else out_ += std::string(static_cast<size_t>(width), ' ');
  }

  void half_cells(int64_t row, int64_t column) {
    out_ += foreground(paint_(row, column).color, screen_.colors);
    out_ += row + 1 < plan_.cell_rows ? background(paint_(row + 1, column).color, screen_.colors) : "\x1b[49m";
    for (int n = 0; n < plan_.cell_width; ++n) out_ += "▀";
  }

  const GridPlan& plan_;
  const AxisLabels& labels_;
  const Paint& paint_;
  const Screen& screen_;
  int64_t unit_;
  std::string out_;
};

}  // namespace

GridPlan plan_grid(int64_t rows, int64_t columns, const AxisLabels& labels, const Screen& screen, int64_t unit) {
  GridPlan plan;
  plan.label_width = digits((rows - 1) * unit) + (labels.rows.empty() ? 0 : 1 + widest(labels.rows));
  const int64_t room = std::max<int64_t>(4, screen.columns - plan.label_width - 1);
  const int64_t lines = std::max<int64_t>(24, screen.lines - kLinesAround);
  const auto count_cells = [&] {
    plan.cell_rows = ceil_div(rows, plan.row_factor);
    plan.cell_columns = ceil_div(columns, plan.column_factor);
    return plan;
  };
  for (int width : {4, 2}) {
    if (columns * width > room || rows > lines) continue;
    plan.cell_width = width;
    return count_cells();
  }
  plan.half_blocks = screen.unicode && screen.colors != ColorDepth::kNone;
  plan.row_factor = ceil_div(rows, 2 * lines);
  plan.column_factor = ceil_div(columns, room);
  // A square matrix keeps its diagonal: a cell is then as high as wide, two of them on a line or one twice as high.
  if (rows == columns) plan.row_factor = plan.column_factor = std::max(plan.row_factor, plan.column_factor);
  if (!plan.half_blocks) plan.row_factor = std::min(std::max<int64_t>(1, rows), 2 * plan.row_factor);
  return count_cells();
}

std::string render_grid(const GridPlan& plan, const AxisLabels& labels, const Paint& paint, const Screen& screen,
                        int64_t unit) {
  return Renderer(plan, labels, paint, screen, unit).render();
}

}  // namespace qkv::cli
