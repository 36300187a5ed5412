// Heat maps as pictures.
#include <algorithm>

#include <fmt/format.h>

#include "core/ceil_div.h"
#include "qkv/colormap.h"
#include "qkv/error.h"
#include "qkv/labels.h"
#include "qkv/see.h"

namespace qkv::cli {

namespace {

constexpr int kMargin = 16, kLegendWidth = 16;
constexpr int64_t kHeadSide = 768, kSmallSide = 96;  // pixels of a head alone, and of many
constexpr int64_t kLargestCell = 48;
constexpr size_t kHeadsOfARow = 8;  // of a layer alone

class Canvas {
 public:
  Canvas(int64_t width, int64_t height) {
    image_.width = static_cast<int>(width);
    image_.height = static_cast<int>(height);
    image_.rgb.assign(static_cast<size_t>(width * height * 3), 255);
  }
  void fill(int64_t x, int64_t y, int64_t width, int64_t height, Rgb c) {
    for (int64_t row = y; row < y + height; ++row) {
      for (int64_t column = x; column < x + width; ++column) {
        uint8_t* at = &image_.rgb[static_cast<size_t>((row * image_.width + column) * 3)];
        at[0] = c.r, at[1] = c.g, at[2] = c.b;
      }
    }
  }
  const Image& image() const { return image_; }

 private:
  Image image_;
};

/// A matrix, reduced where it has more cells than pixels, and how large a cell is drawn.
struct Drawing {
  Matrix cells;
  int64_t cell = 1;
  int64_t width() const { return cells.columns * cell; }
  int64_t height() const { return cells.rows * cell; }
};

Drawing drawing_of(const Matrix& m, int64_t side) {
  const int64_t longest = std::max<int64_t>({1, m.rows, m.columns}), factor = ceil_div(longest, side);
  Drawing d{reduce_by_maximum(m, factor, factor)};
  d.cell = std::clamp<int64_t>(side / std::max<int64_t>({1, d.cells.rows, d.cells.columns}), 1, kLargestCell);
  return d;
}

/// Large cells have a thin line of paper between them.
void draw(Canvas& canvas, const Drawing& d, int64_t left, int64_t top, const Shade& shade) {
  const int64_t gap = d.cell >= 12 ? 1 : 0;
  for (int64_t i = 0; i < d.cells.rows; ++i) {
    for (int64_t j = 0; j < d.cells.columns; ++j) {
      const size_t at = d.cells.at(i, j);
      canvas.fill(left + j * d.cell, top + i * d.cell, d.cell - gap, d.cell - gap,
                  d.cells.hides(at) ? kHidden : shade.color(d.cells.values[at]));
    }
  }
}

/// All shades, the brightest on top.
void draw_legend(Canvas& canvas, int64_t left, int64_t top, int64_t height, const Shade& shade) {
  for (int64_t y = 0; y < height; ++y)
    canvas.fill(left, top + y, kLegendWidth, 1,
                shade.color_at(1 - static_cast<double>(y) / static_cast<double>(std::max<int64_t>(1, height - 1))));
}

struct Sheet {
  std::vector<std::vector<Drawing>> rows;
  Range range;
  int64_t keys = 1;
  bool hidden = false;
};

bool hides(const Drawing& d) {
  return std::any_of(d.cells.hidden.begin(), d.cells.hidden.end(), [](uint8_t h) { return h != 0; });
}

Sheet sheet_of(const SeeOptions& o, const std::vector<Layer>& layers) {
  Sheet sheet;
  for (const Layer& layer : layers) {
    for (int64_t h = 0; h < layer.heads(); ++h) {
      if (h == 0 || (layers.size() == 1 && sheet.rows.back().size() == kHeadsOfARow)) sheet.rows.emplace_back();
      const Drawing& d = sheet.rows.back().emplace_back(drawing_of(layer.picture(o.batch, h, o.measure()), kSmallSide));
      sheet.range.add(range_of(d.cells));
      sheet.hidden = sheet.hidden || hides(d);
    }
    sheet.keys = std::max(sheet.keys, layer.keys());
  }
  return sheet;
}

std::string shades_text(const Shade& shade, bool hidden) {
  return fmt::format("{} from {:.3g} ({}) to {:.3g} ({}), {}{}", shade.measure(), shade.darkest(),
                     shade.has_middle() ? "blue" : "dark blue", shade.brightest(),
                     shade.has_middle() ? "brown" : "yellow", shade.name(), hidden ? "; grey is hidden" : "");
}

[[noreturn]] void refuse_empty() { throw OptionError("there is nothing to draw: no head, no query or no key"); }

Picture picture_of_head(const SeeOptions& o, const Layer& layer) {
  const Drawing d = drawing_of(layer.picture(o.batch, o.head, o.measure()), kHeadSide);
  if (d.width() == 0 || d.height() == 0) refuse_empty();
  const Shade shade(range_of(d.cells), layer.keys(), o.scale);
  Canvas canvas(d.width() + kLegendWidth + 3 * kMargin, d.height() + 2 * kMargin);
  draw(canvas, d, kMargin, kMargin, shade);
  draw_legend(canvas, d.width() + 2 * kMargin, kMargin, d.height(), shade);
  return {canvas.image(),
          fmt::format("{}: rows from the top are queries 0 to {}, columns from the left keys 0 to {}; {}",
                      head_name(layer, o.head, o.batch), layer.queries() - 1, layer.keys() - 1,
                      shades_text(shade, hides(d)))};
}

Picture picture_of_heads(const SeeOptions& o, const std::vector<Layer>& layers) {
  const Sheet sheet = sheet_of(o, layers);
  int64_t side_x = 0, side_y = 0;
  size_t columns = 0;
  for (const auto& row : sheet.rows) {
    columns = std::max(columns, row.size());
    for (const Drawing& d : row) side_x = std::max(side_x, d.width()), side_y = std::max(side_y, d.height());
  }
  if (side_x == 0 || side_y == 0) refuse_empty();
  const Shade shade(sheet.range, sheet.keys, o.scale);
  const int64_t step_x = side_x + kMargin, step_y = side_y + kMargin;
  Canvas canvas(static_cast<int64_t>(columns) * step_x + kLegendWidth + 2 * kMargin,
                static_cast<int64_t>(sheet.rows.size()) * step_y + kMargin);
  for (size_t r = 0; r < sheet.rows.size(); ++r) {
    for (size_t c = 0; c < sheet.rows[r].size(); ++c)
      draw(canvas, sheet.rows[r][c], kMargin + static_cast<int64_t>(c) * step_x,
           kMargin + static_cast<int64_t>(r) * step_y, shade);
  }
  draw_legend(canvas, canvas.image().width - kLegendWidth - kMargin, kMargin, canvas.image().height - 2 * kMargin,
              shade);
  const std::string order = layers.size() == 1
                                ? fmt::format("heads in reading order, {} on a line", std::min(columns, kHeadsOfARow))
                                : fmt::format("layers {} to {} from the top, heads from the left",
                                              layers.front().number(), layers.back().number());
  return {canvas.image(), fmt::format("{}; {}", order, shades_text(shade, sheet.hidden))};
}

}  // namespace

Picture picture_of(const SeeOptions& asked, const std::vector<Layer>& layers) {
  SeeOptions o = asked;
  if (!o.grid && shows_one_head(o, layers)) o.head = std::max(0, o.head);
  if (o.mask || o.row >= 0) throw OptionError("--png draws weights: leave --mask and --row out");
  return o.head >= 0 && !o.grid ? picture_of_head(o, layers.front()) : picture_of_heads(o, layers);
}

}  // namespace qkv::cli
