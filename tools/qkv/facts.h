// What a head does, in numbers: how sharp it is, which positions it looks at, its strongest links.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "qkv/problem.h"
#include "qkv/progress.h"

namespace qkv::cli {

struct Link {
  int64_t query = 0, key = 0;
  float weight = 0;
};

/// Where a head can look by position alone.
enum class Place : uint8_t { kSelf, kPrevious, kNext, kFirst, kLast };
inline constexpr int kPlaces = 5;
const char* name(Place);  ///< "the previous token"

struct HeadFacts {
  double entropy = 0;         ///< mean over the rows that see something, in nats
  double effective_keys = 0;  ///< mean of exp(entropy of the row)
  /// Mean weight on that place, over the rows for which there is such a key. -1: no row has one.
  double share[kPlaces] = {-1, -1, -1, -1, -1};
  std::vector<Link> links;   ///< the strongest first; ties: lower query, then lower key
  int64_t empty_rows = 0;    ///< rows that see nothing
  int64_t padding_rows = 0;  ///< rows of padding, which are left out of everything above

  double of(Place p) const { return share[static_cast<int>(p)]; }
  Place favourite() const;  ///< the place with the largest share
};

/// A head whose favourite place takes at least this much looks there whatever the words are.
inline constexpr double kHabit = 0.8;

/// Queries that are padding: in self-attention (L is S) those whose own key a length or a mask hides from everybody. What
/// they look at means nothing.
std::vector<bool> padding_of(const Problem&, int64_t batch);

/// Facts of every head of a batch entry, `count` links each. O(L) memory.
std::vector<HeadFacts> facts_of(const Problem&, int64_t batch, int count, Progress&);
/// The same of one head of weights {B, H, L, S} that somebody computed; query i stands at key i + offset.
HeadFacts facts_of_weights(View<const void> weights, int64_t batch, int64_t head, int64_t offset, int count,
                           const Call& call = {});

}  // namespace qkv::cli
