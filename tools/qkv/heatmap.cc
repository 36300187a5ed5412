#include "qkv/heatmap.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "qkv/colormap.h"

namespace qkv::cli {

namespace {

constexpr std::string_view kRamp = " .:-=+*#%@";  // ten steps that get darker on paper, brighter on a black screen

struct Range {
  float low = 0, high = 0;
};

/// 0, or what lies below it, to the largest finite value.
Range range_of(const Matrix& m) {
  Range range;
  for (float v : m.values) {
    if (!std::isfinite(v)) continue;
    range.low = std::min(range.low, v);
    range.high = std::max(range.high, v);
  }
  return range;
}

class Shade {
 public:
  Shade(const Matrix& m, Scale scale) : range_(range_of(m)), scale_(scale) {
    floor_ = std::max(1e-6F, 1.0F / (16.0F * static_cast<float>(std::max<int64_t>(1, m.columns * m.unit))));
    if (floor_ >= range_.high) scale_ = Scale::kLinear;
  }
  double place(float v) const {
    if (scale_ == Scale::kLog) return std::log(std::max(v, floor_) / floor_) / std::log(range_.high / floor_);
    return range_.high > range_.low ? (v - range_.low) / (range_.high - range_.low) : 0;
  }
  float darkest() const { return scale_ == Scale::kLog ? floor_ : range_.low; }
  float brightest() const { return range_.high; }
  const char* name() const { return scale_ == Scale::kLog ? "log scale" : "linear scale"; }

 private:
  Range range_;
  Scale scale_;
  float floor_ = 0;
};

/// Three columns: ".56", "1.0", "-.2"; nothing for what rounds to 0.
std::string short_number(float v, bool colored) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v > 0 ? "inf" : "-in";
  if (std::abs(v) < 0.005F) return colored ? "" : ".";
  if (v > 0 && v < 0.995F) return fmt::format("{:.2f}", v).substr(1);
  if (v < 0 && v > -0.95F) return "-" + fmt::format("{:.1f}", -v).substr(1);
  return std::abs(v) < 9.95F ? fmt::format("{:.1f}", v).substr(0, 3) : v > 0 ? ">10" : "<10";
}

CellLook look_of(const Matrix& m, const Shade& shade, size_t at, bool colored) {
  if (!m.hidden.empty() && m.hidden[at] != 0) return {kHidden, "//", '/'};
  const float v = m.values[at];
  if (std::isnan(v)) return {kNotANumber, "NaN", '?'};
  const double place = shade.place(v);
  const auto step = static_cast<size_t>(
      std::clamp(place * static_cast<double>(kRamp.size()), 0.0, static_cast<double>(kRamp.size() - 1)));
  return {cividis(place), short_number(v, colored), kRamp[step]};
}

std::string legend(const GridPlan& plan, const Matrix& m, const Shade& shade, const Screen& screen) {
  std::string bar;
  if (screen.colors == ColorDepth::kNone) {
    bar = plan.cell_width == 4 ? "to" : fmt::format("'{}'", kRamp);
  } else {
    for (int n = 0; n < 24; ++n) bar += background(cividis(n / 23.0), screen.colors) + " ";
    bar += plain(screen.colors);
  }
  std::string text =
      fmt::format("{} weight {:.3g} {} {:.3g}, {}", std::string(static_cast<size_t>(plan.label_width), ' '),
                  shade.darkest(), bar, shade.brightest(), shade.name());
  const int64_t high = plan.row_factor * m.unit, wide = plan.column_factor * m.unit;
  if (high * wide > 1) text += fmt::format("; a cell is the largest of {} x {} pairs", high, wide);
  if (std::any_of(m.hidden.begin(), m.hidden.end(), [](uint8_t h) { return h != 0; }))
    text += screen.colors == ColorDepth::kNone ? "; / hidden" : "; grey: hidden";
  if (std::any_of(m.values.begin(), m.values.end(), [](float v) { return std::isnan(v); }))
    text += screen.colors == ColorDepth::kNone ? "; ? NaN" : "; magenta: NaN";
  return text + "\n";
}

}  // namespace

Matrix reduce_by_maximum(const Matrix& m, int64_t row_factor, int64_t column_factor) {
  if (row_factor == 1 && column_factor == 1) return m;
  Matrix small{(m.rows + row_factor - 1) / row_factor, (m.columns + column_factor - 1) / column_factor, m.unit, {}, {}};
  small.values.assign(static_cast<size_t>(small.rows * small.columns), -INFINITY);
  if (!m.hidden.empty()) small.hidden.assign(small.values.size(), 1);
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.columns; ++j) {
      const size_t to = small.at(i / row_factor, j / column_factor), from = m.at(i, j);
      float& largest = small.values[to];
      if (std::isnan(m.values[from]) || m.values[from] > largest) largest = m.values[from];  // never leaves a NaN again
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
  const Shade shade(cells, scale);
  const bool colored = screen.colors != ColorDepth::kNone;
  const Paint paint = [&](int64_t r, int64_t c) { return look_of(cells, shade, cells.at(r, c), colored); };
  return render_grid(plan, labels, paint, screen, m.unit) + legend(plan, m, shade, screen);
}

}  // namespace qkv::cli
