#include "qkv/numbers.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace qkv::cli {

std::string number(double x) {
  if (x == 0) return "0";
  if (!std::isfinite(x)) return fmt::format("{}", x);
  const double size = std::abs(x);
  if (size < 1e6 && x == std::floor(x)) return fmt::format("{:.0f}", x);
  return size >= 1e-4 && size < 1e6 ? fmt::format("{:.6f}", x) : fmt::format("{:.6g}", x);
}

std::string vector_text(const std::vector<double>& x) {
  constexpr size_t kMost = 4;
  std::string text = "[";
  for (size_t n = 0; n < x.size(); ++n) {
    if (x.size() > kMost && n >= kMost - 1 && n + 1 < x.size()) {
      if (n == kMost - 1) text += ", ..";
      continue;
    }
    text += (n == 0 ? "" : ", ") + (x.size() > kMost ? fmt::format("{:.3g}", x[n]) : number(x[n]));
  }
  return x.size() > kMost ? text + fmt::format("] ({})", x.size()) : text + "]";
}

std::vector<double> times(double factor, std::vector<double> x) {
  for (double& v : x) v = factor == 0 ? 0 : factor * v;
  return x;
}

double apart(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double d = std::abs(a - b);
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

}  // namespace qkv::cli
