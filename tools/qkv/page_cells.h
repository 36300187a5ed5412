// What a page needs in order to draw the cells of a layer's heads, and how large that is.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "qkv/page_encode.h"
#include "qkv/page_rows.h"

namespace qkv::cli {

/// Where the page takes a weight from.
enum class CellSource : uint8_t {
  kHalves,  ///< every weight as float16
  kScores,  ///< recomputed in the page from q and k in float16 and the log-sum-exp; plain attention only
  kCodes,   ///< 8-bit tiles; those that are hidden altogether are left out
};

/// Which part of a layer is wanted. Codes and scores come with a picture of at most overview_side cells a side.
struct PagePart {
  std::vector<int64_t> batches, heads;
  int overview_side = 256;
};

/// Side of a tile of codes, and of the tiles in which the page computes.
inline constexpr int64_t kTileSide = 128;

/// Of plain attention the smaller of halves and scores. Of any other, halves up to `most_pairs` pairs of a query and a key
/// in a head, else codes.
CellSource choose_cells(const Layer&, const PagePart&, int64_t most_pairs);
/// Characters of base64 that collect_cells adds at most. As a double: a hostile file can claim any size.
double size_of_cells(const Layer&, const PagePart&, CellSource);
/// By (batch, head): "kind", the numbers of blobs, "low" and "high" of what is finite, "nan" where something is not.
std::map<std::pair<int64_t, int64_t>, nlohmann::json> collect_cells(const Layer&, const PagePart&, CellSource, Blobs&);

}  // namespace qkv::cli
