#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/format.h"
#include "qkv/optim.h"

namespace qkv::nn {

double Schedule::at(int64_t step) const {
  if (!std::isfinite(peak) || !std::isfinite(last) || peak < 0 || last < 0)
    option_error("Schedule: peak is {} and last {}, expected numbers of at least 0", peak, last);
  if (warmup < 0 || step < 0) option_error("Schedule: warmup is {} and step {}, expected 0 or more", warmup, step);
  const bool ends = kind == ScheduleKind::kLinear || kind == ScheduleKind::kCosine;
  if (ends && steps <= warmup)
    option_error("Schedule: {} steps with a warm-up of {}, expected more steps than that", steps, warmup);
  if (kind == ScheduleKind::kInverseSquareRoot && warmup == 0)
    option_error("Schedule: an inverse square root needs a warm-up of at least 1 step, at whose end it begins");
  if (step < warmup) return peak * double(step + 1) / double(warmup);
  if (kind == ScheduleKind::kConstant) return peak;
  if (kind == ScheduleKind::kInverseSquareRoot) return peak * std::sqrt(double(warmup) / double(step + 1));
  const double done = std::min(1.0, double(step - warmup) / double(steps - warmup));
  const double left = kind == ScheduleKind::kLinear ? 1 - done : (1 + std::cos(std::numbers::pi * done)) / 2;
  return last + (peak - last) * left;
}

}  // namespace qkv::nn
