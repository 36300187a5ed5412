// Which colour a weight gets, and what a legend says about it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "qkv/terminal.h"

namespace qkv::cli {

/// kLift: weight times the number of keys that the query may see, so 1 is a uniform weight, on a log scale around 1. The
/// only fair one where rows see different numbers of keys. kSigned: of weight times gradient, linear, 0 in the middle.
enum class Scale : uint8_t { kLinear, kLog, kLift, kSigned };

struct Range {
  float low = 0, high = 0;
  void add(float v);  ///< what is not finite is left out
  void add(const Range& other) { add(other.low), add(other.high); }
};

class Shade {
 public:
  /// `keys`: of a row, for the floor of the log scale, max(1e-6, 1 / (16 keys)).
  Shade(Range, int64_t keys, Scale);
  /// Where a finite number lies between both ends, 0 to 1. Of kLift 1/2 is the middle, where a weight is uniform; of
  /// kSigned where there is 0.
  double place(float v) const;
  Rgb color(float v) const;  ///< of NaN too
  Rgb color_at(double place) const;
  float darkest() const;
  float brightest() const;
  const char* measure() const;
  const char* name() const;
  bool has_middle() const { return scale_ == Scale::kLift || scale_ == Scale::kSigned; }
  /// What numbers of two digits count in, where weights' own digits would not do: of kSigned a power of ten, else nothing.
  std::optional<double> unit() const;

 private:
  Range range_;
  Scale scale_;
  float floor_ = 0;
  double octaves_ = 1;  ///< of kLift on either side of 1
};

}  // namespace qkv::cli
