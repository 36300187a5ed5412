// Which links of a layer are worth a line: the largest weights, or those that no habit explains.
#pragma once
#include <cstdint>
#include <vector>

#include "qkv/layer.h"

namespace qkv::cli {

struct RankedLink {
  int64_t head = 0;
  Link link;
  /// The larger of two means over the other queries that see the pair: the weight on the same key, and the weight at the
  /// same distance. What one would expect of this head without knowing the words. -1: not computed.
  double usual = -1;
};

/// kSurprise: by weight - usual; without links to itself and to the first key, where heads put what they do not need.
enum class Rank : uint8_t { kSurprise, kWeight };

/// The first `count` links of a head, or of all heads (head < 0). Ties: lower head, query, key. Of sequences whose weights
/// are too many to hold: by weight, without `usual`.
std::vector<RankedLink> rank_links(const Layer&, int64_t batch, int64_t head, int count, Rank);

/// All links between two keys or queries for which `chosen` is true, in reading order.
std::vector<RankedLink> links_between(const Layer&, int64_t batch, int64_t head, const std::vector<bool>& queries,
                                      const std::vector<bool>& keys);

}  // namespace qkv::cli
