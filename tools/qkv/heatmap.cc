#include "qkv/heatmap.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "core/ceil_div.h"
#include "qkv/colormap.h"

namespace qkv::cli {

namespace {

constexpr int kAroundBar = 28, kShortestBar = 8, kLongestBar = 24;  // columns of the legend
constexpr std::string_view kRamp = " .:-=+*#%@";  // ten steps that get darker on paper, brighter on a black screen

/// Three columns: ".56", "1.0", "-.2"; nothing for what rounds to 0.
std::string short_number(float v, bool colored) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v > 0 ? "inf" : "-in";
  if (std::abs(v) < 0.005F) return colored ? "" : ".";
  if (v > 0 && v < 0.995F) return fmt::format("{:.2f}", v).substr(1);
  if (v < 0 && v > -0.95F) return "-" + fmt::format("{:.1f}", -v).substr(1);
  if (v >= 9.95F && v < 999.5F) return fmt::format("{:.0f}", v);
  return std::abs(v) < 9.95F ? fmt::format("{:.1f}", v).substr(0, 3) : v > 0 ? ">1k" : "<10";
}

/// The same of numbers of any size, by the unit that the legend says.
std::string counted(float v, double unit, bool colored) {
  if (!std::isfinite(v)) return short_number(v, colored);
  const long count = std::lround(v / unit);
  return count != 0 ? std::to_string(count) : colored ? "" : ".";
}

CellLook look_of(const Matrix& m, const Shade& shade, size_t at, bool colored) {
  if (m.hides(at)) return {kHidden, "//", '/'};
  const float v = m.values[at];
  if (std::isnan(v)) return {shade.color(v), "NaN", '?'};
  const double place = shade.place(v);
  const auto unit = shade.unit();
  return {shade.color_at(place), unit ? counted(v, *unit, colored) : short_number(v, colored), ramp(place)};
}

std::string legend(const GridPlan& plan, const Matrix& m, const Shade& shade, const Screen& screen) {
  std::string text = std::string(static_cast<size_t>(plan.label_width + 1), ' ') +
                     legend_of(shade, screen, plan.cell_width == 4 ? Cells::kNumbers : Cells::kShades);
  if (shade.unit() && plan.cell_width == 4) text += fmt::format("; numbers in units of {:.3g}", *shade.unit());
  const int64_t high = plan.row_factor * m.unit, wide = plan.column_factor * m.unit;
  if (high * wide > 1) text += fmt::format("; a cell is the largest of {} x {} pairs", high, wide);
  if (std::any_of(m.hidden.begin(), m.hidden.end(), [](uint8_t h) { return h != 0; }))
    text += screen.colors == ColorDepth::kNone ? "; / hidden" : "; grey: hidden";
  if (std::any_of(m.values.begin(), m.values.end(), [](float v) { return std::isnan(v); }))
    text += screen.colors == ColorDepth::kNone ? "; ? NaN" : "; magenta: NaN";
  return text + "\n";
}

}  // namespace

Range range_of(const Matrix& m) {
  Range range;
  for (size_t n = 0; n < m.values.size(); ++n) {
    if (!m.hides(n)) range.add(m.values[n]);
  }
  return range;
}

char ramp(double place) {
  const auto steps = static_cast<double>(kRamp.size());
  return kRamp[static_cast<size_t>(std::clamp(place * steps, 0.0, steps - 1))];
}

std::string legend_of(const Shade& shade, const Screen& screen, Cells cells) {
  std::string bar = cells == Cells::kNumbers ? "to" : fmt::format("'{}'", kRamp);
  if (screen.colors != ColorDepth::kNone) {
    bar.clear();
    const int width = std::clamp(screen.columns - kAroundBar, kShortestBar, kLongestBar);
    for (int n = 0; n < width; ++n) bar += background(shade.color_at(n / (width - 1.0)), screen.colors) + " ";
    bar += plain(screen.colors);
  }
  return fmt::format("{} {:.3g} {} {:.3g}, {}", shade.measure(), shade.darkest(), bar, shade.brightest(), shade.name());
}

bool is_larger(float x, float y) { return !std::isnan(y) && (std::isnan(x) || std::abs(x) > std::abs(y)); }

Matrix reduce_by_maximum(const Matrix& m, int64_t row_factor, int64_t column_factor) {
  if (row_factor == 1 && column_factor == 1) return m;
  Matrix small{ceil_div(m.rows, row_factor), ceil_div(m.columns, column_factor), m.unit, {}, {}};
  small.values.assign(static_cast<size_t>(small.rows * small.columns), 0.0F);
  if (!m.hidden.empty()) small.hidden.assign(small.values.size(), 1);
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.columns; ++j) {
      const size_t to = small.at(i / row_factor, j / column_factor), from = m.at(i, j);
      float& largest = small.values[to];
      if (is_larger(m.values[from], largest)) largest = m.values[from];  // never leaves a NaN again
      if (!m.hidden.empty()) small.hidden[to] &= static_cast<uint8_t>(m.hidden[from] != 0);
    }
  }
  return small;
}

std::string render_heatmap(const Matrix& m, const AxisLabels& labels, Scale scale, const Screen& screen) {
  if (m.rows == 0 || m.columns == 0)
    return fmt::format("nothing to draw: {} queries, {} keys\n", m.rows * m.unit, m.columns * m.unit);
  const GridPlan plan = plan_grid(m.rows, m.columns, labels, screen, m.unit);
  const Matrix cells = reduce_by_maximum(m, plan.row_factor, plan.column_factor);
  const Shade shade(range_of(cells), m.columns * m.unit, scale);
  const bool colored = screen.colors != ColorDepth::kNone;
  const Paint paint = [&](int64_t r, int64_t c) { return look_of(cells, shade, cells.at(r, c), colored); };
  return render_grid(plan, labels, paint, screen, m.unit) + legend(plan, m, shade, screen);
}

}  // namespace qkv::cli
