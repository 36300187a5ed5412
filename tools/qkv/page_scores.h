// Heads that a page recomputes from queries and keys.
#pragma once
#include <map>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "qkv/page_cells.h"

namespace qkv::cli {

/// Of every wanted head: q {L, dim} and k {S, dim} as float16 with the factor that makes their products scores, lse {L}
/// float64, first and last {L} int32 (the keys that a row sees), an overview, and how far the weights that the page will
/// compute are from the real ones ("error", the largest difference in "rows_compared" rows).
std::map<std::pair<int64_t, int64_t>, nlohmann::json> collect_scores(const Problem&, const Layer&, const PagePart&,
                                                                     Blobs&);

}  // namespace qkv::cli
