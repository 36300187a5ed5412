// How far the library's results are from steps that a person can follow.
#pragma once
#include <vector>

#include "qkv/view.h"

namespace qkv::cli {

/// How far the library is from the steps, and how far it may be (docs/semantics.md, section 6).
struct Agreement {
  const char* what = "";      ///< "out"
  const char* function = "";  ///< "forward"
  double difference = 0, allowed = 0;
  bool holds() const { return difference <= allowed; }
};

/// One tensor, four times.
struct Compared {
  std::vector<double> steps;    ///< in float64
  std::vector<double> library;  ///< as the library gave it
  std::vector<double> plain;    ///< by scalar loops in the library's arithmetic
  std::vector<double> exact;    ///< in higher precision
  DType type = DType::kFloat64;
  double size = 0;  ///< of the terms that are summed, where they may cancel; else that of the sums counts
};

/// Allowed is 2 max|plain - exact| + 8 eps max|exact|, and what the steps in float64 are off themselves. A single row has few
/// sums: where their terms cancel, the plain evaluation can be exact by luck, so the size of the terms counts.
Agreement agree(const char* what, const char* function, const Compared&);

}  // namespace qkv::cli
