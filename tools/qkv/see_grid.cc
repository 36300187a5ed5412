#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/ceil_div.h"
#include "qkv/colormap.h"
#include "qkv/fold.h"
#include "qkv/labels.h"
#include "qkv/see.h"

namespace qkv::cli {

namespace {

constexpr int64_t kSide = 16;  // cells of a small picture, at most
constexpr int kNarrowest = 8, kGap = 2;

struct Small {
  int64_t head = 0;
  double entropy = 0;
  Matrix cells;
  int64_t pairs = 1;  ///< along a side of a cell
};

Small small_of(const SeeOptions& o, const Layer& layer, int64_t head, double entropy) {
  const Matrix m = layer.picture(o.batch, head, o.measure());
  const int64_t factor = std::max<int64_t>(1, ceil_div(std::max(m.rows, m.columns), kSide));
  return {head, entropy, reduce_by_maximum(m, factor, factor), factor * m.unit};
}

class Sheet {
 public:
  Sheet(const Shade& shade, const Screen& screen) : shade_(shade), screen_(screen) {
    halves_ = screen.unicode && screen.colors != ColorDepth::kNone;
  }

  /// Lines of pictures side by side, as many on each line.
  std::string draw(const std::vector<Small>& heads) const {
    if (heads.empty()) return "no heads\n";
    const int width = std::max<int>(kNarrowest, static_cast<int>(heads.front().cells.columns));
    const auto fit_on_line = static_cast<size_t>(std::max(1, (screen_.columns + kGap) / (width + kGap)));
    const size_t lines = (heads.size() + fit_on_line - 1) / fit_on_line, count = (heads.size() + lines - 1) / lines;
    std::string text;
    for (size_t first = 0; first < heads.size(); first += count)
      text += draw_line(heads, first, std::min(heads.size(), first + count), width) + "\n";
    return text;
  }

 private:
  std::string draw_line(const std::vector<Small>& heads, size_t first, size_t last, int width) const {
    std::vector<std::string> lines(1);
    const auto end_line = [&](std::string& line) {
      line.resize(line.find_last_not_of(' ') + 1);
      line += "\n";
    };
    for (size_t h = first; h < last; ++h)
      lines[0] += fit(fmt::format("{} {:.2f}", heads[h].head, heads[h].entropy), width + kGap, Side::kLeft, true);
    end_line(lines[0]);
    const int64_t rows = heads[first].cells.rows;
    for (int64_t row = 0; row < rows; row += 2) {
      std::string line;
      for (size_t h = first; h < last; ++h) {
        const Matrix& m = heads[h].cells;
        for (int64_t c = 0; c < m.columns; ++c) line += halves_ ? half_cells(m, row, c) : whole_cell(m, row, c);
        const auto space = static_cast<size_t>(width + kGap - m.columns);
        line += plain(screen_.colors) + (h + 1 < last ? std::string(space, ' ') : "");
      }
      if (screen_.colors == ColorDepth::kNone) end_line(line);
      else line += "\n";
      lines.push_back(line);
    }
    std::string text;
    for (const std::string& line : lines) text += line;
    return text;
  }

  Rgb color(const Matrix& m, size_t at) const { return m.hides(at) ? kHidden : shade_.color(m.values[at]); }

  std::string half_cells(const Matrix& m, int64_t row, int64_t column) const {
    const std::string below =
        row + 1 < m.rows ? background(color(m, m.at(row + 1, column)), screen_.colors) : "\x1b[49m";
    return foreground(color(m, m.at(row, column)), screen_.colors) + below + "▀";
  }

  /// Two rows by their larger one.
  std::string whole_cell(const Matrix& m, int64_t row, int64_t column) const {
    size_t at = m.at(row, column);
    if (row + 1 < m.rows) {
      const size_t below = m.at(row + 1, column);
      if (m.hides(at) || is_larger(m.values[below], m.values[at])) at = below;
    }
    if (screen_.colors != ColorDepth::kNone) return background(color(m, at), screen_.colors) + " ";
    if (m.hides(at)) return "/";
    return std::string(1, std::isnan(m.values[at]) ? '?' : ramp(shade_.place(m.values[at])));
  }

  Shade shade_;
  const Screen& screen_;
  bool halves_ = false;
};

}  // namespace

std::string grid_text(const SeeOptions& o, const std::vector<Layer>& layers, const Screen& screen) {
  std::vector<std::vector<Small>> all;
  Range range;
  int64_t keys = 0, pairs = 1;
  for (const Layer& layer : layers) {
    all.emplace_back();
    const std::vector<HeadFacts> facts = layer.facts(o.batch, 1);
    for (int64_t h = 0; h < layer.heads(); ++h) {
      all.back().push_back(small_of(o, layer, h, facts[static_cast<size_t>(h)].entropy));
      range.add(range_of(all.back().back().cells));
      pairs = all.back().back().pairs;
    }
    keys = std::max(keys, layer.keys());
  }
  const Shade shade(range, keys, o.scale);
  std::string text = "Heads with the mean entropy of their rows in nats; each row of a picture is a query\n\n";
  for (size_t n = 0; n < layers.size(); ++n) {
    if (layers[n].number() >= 0)
      text += fmt::format("{}layer {}{}\n", bold(screen.colors), layers[n].number(), plain(screen.colors));
    text += Sheet(shade, screen).draw(all[n]);
  }
  text += legend_of(shade, screen, Cells::kShades);
  if (pairs > 1) text += fmt::format("; a cell is the largest of {} x {} pairs", pairs, pairs);
  return fold(text + "\n", screen);
}

}  // namespace qkv::cli
