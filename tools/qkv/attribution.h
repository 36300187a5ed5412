// What each link adds to a loss: its weight times the gradient by that weight.
#pragma once
#include <cstdint>
#include <vector>

#include "qkv/heatmap.h"
#include "qkv/problem.h"
#include "qkv/progress.h"

namespace qkv::cli {

struct AttributedLink {
  int64_t query = 0, key = 0;
  double weight = 0;
  double gradient = 0;  ///< by the weight: dout . v
  double share() const { return weight == 0 ? 0 : weight * gradient; }
};

struct Attribution {
  Matrix picture;                     ///< shares; where there are many, of each square the largest in size
  std::vector<AttributedLink> links;  ///< the largest shares in size first; ties: lower query, then lower key
  double sum = 0;                     ///< of all shares: that of dout . out over the queries
};

/// Of a problem of one head with its dout, at O(S Dv) memory beside the picture. `count`: of links.
Attribution attribution_of(const Problem&, size_t count, Progress&);

}  // namespace qkv::cli
