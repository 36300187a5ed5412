#include "qkv/shade.h"

#include <algorithm>
#include <cmath>

#include "qkv/colormap.h"

namespace qkv::cli {

void Range::add(float v) {
  if (!std::isfinite(v)) return;
  low = std::min(low, v);
  high = std::max(high, v);
}

Shade::Shade(Range range, int64_t keys, Scale scale) : range_(range), scale_(scale) {
  floor_ = std::max(1e-6F, 1.0F / (16.0F * static_cast<float>(std::max<int64_t>(1, keys))));
  if (scale_ == Scale::kLog && floor_ >= range_.high) scale_ = Scale::kLinear;
  if (range_.high > 2) octaves_ = std::log2(range_.high);
}

double Shade::place(float v) const {
  switch (scale_) {
    case Scale::kLog: return std::log(std::max(v, floor_) / floor_) / std::log(range_.high / floor_);
    case Scale::kLift: return v > 0 ? std::clamp(0.5 + std::log2(v) / (2 * octaves_), 0.0, 1.0) : 0.0;
    case Scale::kSigned: return brightest() > 0 ? 0.5 + v / (2 * static_cast<double>(brightest())) : 0.5;
    case Scale::kLinear: break;
  }
  return range_.high > range_.low ? (v - range_.low) / (range_.high - range_.low) : 0;
}

Rgb Shade::color(float v) const { return std::isnan(v) ? kNotANumber : color_at(place(v)); }

Rgb Shade::color_at(double place) const { return has_middle() ? diverging(2 * place - 1) : cividis(place); }

float Shade::darkest() const {
  if (scale_ == Scale::kLift) return static_cast<float>(std::exp2(-octaves_));
  if (scale_ == Scale::kSigned) return -brightest();
  return scale_ == Scale::kLog ? floor_ : range_.low;
}

float Shade::brightest() const {
  if (scale_ == Scale::kLift) return static_cast<float>(std::exp2(octaves_));
  return scale_ == Scale::kSigned ? std::max(-range_.low, range_.high) : range_.high;
}

const char* Shade::measure() const {
  if (scale_ == Scale::kSigned) return "weight times gradient";
  return scale_ == Scale::kLift ? "lift" : "weight";
}

std::optional<double> Shade::unit() const {
  if (scale_ != Scale::kSigned) return std::nullopt;
  const double most = brightest();
  if (most == 0) return 1;
  const double unit = std::pow(10, std::floor(std::log10(most)) - 1);
  return std::round(most / unit) < 100 ? unit : 10 * unit;
}

const char* Shade::name() const {
  switch (scale_) {
    case Scale::kLog: return "log scale";
    case Scale::kLift: return "log scale, 1 is a uniform weight";
    case Scale::kSigned: return "linear scale, 0 in the middle";
    case Scale::kLinear: break;
  }
  return "linear scale";
}

}  // namespace qkv::cli
