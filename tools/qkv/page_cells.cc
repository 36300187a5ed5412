#include "qkv/page_cells.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <nlohmann/json.hpp>

#include "core/ceil_div.h"
#include "qkv/page_scores.h"

namespace qkv::cli {

namespace {

using nlohmann::json;

double characters(double bytes) { return 4 * std::ceil(bytes / 3); }

/// Range of what is finite, and whether something is not.
struct Seen {
  float low = 0, high = 0;
  bool nan = false;
  void look(float w) {
    if (std::isnan(w)) nan = true;
    if (!std::isfinite(w)) return;
    low = std::min(low, w);
    high = std::max(high, w);
  }
  void write(json& to) const {
    to["low"] = low;
    to["high"] = high;
    if (nan) to["nan"] = true;
  }
};

/// Takes the rows of one head and makes what the page gets of it.
class Builder {
 public:
  virtual ~Builder() = default;
  virtual void add(const WeightRow&) = 0;
  virtual json finish(Blobs&) = 0;
};

class HalvesBuilder final : public Builder {
 public:
  void add(const WeightRow& r) override {
    weights_.insert(weights_.end(), r.weights.begin(), r.weights.end());
    hidden_.insert(hidden_.end(), r.hidden.begin(), r.hidden.end());
  }
  json finish(Blobs& blobs) override {
    Seen seen;
    for (size_t n = 0; n < weights_.size(); ++n) {
      if (hidden_.empty() || hidden_[n] == 0) seen.look(weights_[n]);
    }
    const Halves halves = weights_to_halves(weights_, hidden_);
    json cells = {{"kind", "weights"}, {"factor", halves.factor}, {"weights", blobs.add(std::span(halves.bits))}};
    if (hidden_.empty() && !weights_.empty()) cells["masks_unknown"] = true;
    seen.write(cells);
    return cells;
  }

 private:
  std::vector<float> weights_;
  std::vector<uint8_t> hidden_;
};

class CodesBuilder final : public Builder {
 public:
  CodesBuilder(const Sequence& s, int overview_side)
      : sequence_(s),
        cell_(overview_cell(s.queries, s.keys, overview_side)),
        tile_columns_(ceil_div(s.keys, kTileSide)),
        tiles_(static_cast<size_t>(ceil_div(s.queries, kTileSide) * tile_columns_)),
        largest_(static_cast<size_t>(ceil_div(s.queries, cell_) * ceil_div(s.keys, cell_)), kHiddenCode),
        sums_(largest_.size()) {}

  void add(const WeightRow& r) override {
    uint32_t count = 0;
    for (int64_t j = 0; j < sequence_.keys; ++j) {
      const auto at = static_cast<size_t>(j);
      if (!r.hidden.empty() && r.hidden[at] != 0) continue;
      const float w = r.weights[at];
      range_.look(w);
      count += r.hidden.empty() && w == 0 ? 0 : 1;
      put(r.row, j, code_of(static_cast<double>(w)));
      sums_[cell_at(r.row, j)] += static_cast<double>(w);
    }
    counts_.push_back(count);
    masks_known_ = masks_known_ || !r.hidden.empty();
  }

  json finish(Blobs& blobs) override {
    json cells = {
        {"kind", "codes"}, {"codes", blobs.add(tile_bytes())}, {"seen", blobs.add(std::span<const uint32_t>(counts_))}};
    cells["overview"] = {{"cell", cell_},
                         {"largest", blobs.add(std::span<const uint8_t>(largest_))},
                         {"mean", blobs.add(std::span<const uint8_t>(means()))}};
    if (!masks_known_) cells["masks_unknown"] = true;
    range_.write(cells);
    return cells;
  }

 private:
  size_t cell_at(int64_t i, int64_t j) const {
    return static_cast<size_t>(i / cell_ * ceil_div(sequence_.keys, cell_) + j / cell_);
  }

  void put(int64_t i, int64_t j, uint8_t code) {
    std::vector<uint8_t>& tile = tiles_[static_cast<size_t>(i / kTileSide * tile_columns_ + j / kTileSide)];
    const int64_t columns = std::min(kTileSide, sequence_.keys - j / kTileSide * kTileSide);
    if (tile.empty())
      tile.resize(static_cast<size_t>(columns * std::min(kTileSide, sequence_.queries - i / kTileSide * kTileSide)));
    tile[static_cast<size_t>(i % kTileSide * columns + j % kTileSide)] = code;
    uint8_t& top = largest_[cell_at(i, j)];
    top = std::max(top, code);  // a NaN is the largest code
  }

  /// Where each tile begins among the bytes that follow, row by row, uint32; all ones: it is hidden altogether.
  std::string tile_bytes() const {
    std::vector<uint32_t> starts;
    std::string bytes;
    for (const auto& tile : tiles_) {
      starts.push_back(tile.empty() ? ~0U : static_cast<uint32_t>(bytes.size()));
      bytes.append(tile.begin(), tile.end());
    }
    return std::string(reinterpret_cast<const char*>(starts.data()), starts.size() * sizeof(uint32_t)) + bytes;
  }

  std::vector<uint8_t> means() const {
    std::vector<uint8_t> codes;
    const int64_t columns = ceil_div(sequence_.keys, cell_);
    for (size_t n = 0; n < sums_.size(); ++n) {
      const int64_t row = static_cast<int64_t>(n) / columns, column = static_cast<int64_t>(n) % columns;
      const int64_t pairs = std::min<int64_t>(cell_, sequence_.queries - row * cell_) *
                            std::min<int64_t>(cell_, sequence_.keys - column * cell_);
      codes.push_back(largest_[n] == kHiddenCode ? kHiddenCode : code_of(sums_[n] / static_cast<double>(pairs)));
    }
    return codes;
  }

  Sequence sequence_;
  int cell_;
  int64_t tile_columns_;
  std::vector<std::vector<uint8_t>> tiles_;
  std::vector<uint8_t> largest_;
  std::vector<double> sums_;
  std::vector<uint32_t> counts_;
  Seen range_;
  bool masks_known_ = false;
};

/// Bytes of the tiles in which something may be seen, as far as ranges know.
double bytes_of_tiles(const Layer& layer, const Sequence& s) {
  if (layer.problem() == nullptr) return static_cast<double>(s.queries) * static_cast<double>(s.keys);
  double bytes = 0;
  for (int64_t first = 0; first < s.queries; first += kTileSide) {
    const int64_t rows = std::min(kTileSide, s.queries - first);
    KeyRange hull{0, 0};
    for (int64_t i = first; i < first + rows; ++i) {
      const KeyRange r = range_of(*layer.problem(), s, i);
      if (r.empty()) continue;
      hull = hull.empty() ? r : KeyRange{std::min(hull.first, r.first), std::max(hull.last, r.last)};
    }
    if (hull.empty()) continue;
    const int64_t begin = hull.first / kTileSide * kTileSide;
    const int64_t end = std::min(ceil_div(hull.last, kTileSide) * kTileSide, s.keys);
    bytes += static_cast<double>(rows) * static_cast<double>(end - begin);
  }
  return bytes;
}

double overview_size(const Sequence& s, int side) {
  const int cell = overview_cell(s.queries, s.keys, side);
  return 2 * characters(static_cast<double>(ceil_div(s.queries, cell)) * static_cast<double>(ceil_div(s.keys, cell)));
}

double size_of_head(const Layer& layer, const Sequence& s, const PagePart& part, CellSource source) {
  const auto queries = static_cast<double>(s.queries), keys = static_cast<double>(s.keys);
  switch (source) {
    case CellSource::kHalves: return characters(2 * queries * keys);
    case CellSource::kScores: {
      const Sizes& z = layer.problem()->sizes;  // keys are shared by the query heads of a group
      const double group = static_cast<double>(z.heads) / static_cast<double>(std::max<int64_t>(1, z.key_heads));
      const double share = std::max(1.0, std::min(group, static_cast<double>(part.heads.size())));
      return characters(2 * queries * static_cast<double>(z.dim)) +
             characters(2 * keys * static_cast<double>(z.dim)) / share + characters(8 * queries) +
             overview_size(s, part.overview_side);
    }
    case CellSource::kCodes:
      return characters(bytes_of_tiles(layer, s)) + characters(4 * queries) + overview_size(s, part.overview_side);
  }
  return 0;
}

}  // namespace

double size_of_cells(const Layer& layer, const PagePart& part, CellSource source) {
  double size = 0;
  for (int64_t b : part.batches)
    size += static_cast<double>(part.heads.size()) * size_of_head(layer, sequence_of(layer, b), part, source);
  return size;
}

CellSource choose_cells(const Layer& layer, const PagePart& part, int64_t most_pairs) {
  const Problem* p = layer.problem();
  if (p != nullptr && is_plain(*p))
    return size_of_cells(layer, part, CellSource::kScores) < size_of_cells(layer, part, CellSource::kHalves)
               ? CellSource::kScores
               : CellSource::kHalves;
  return layer.queries() * layer.keys() <= most_pairs ? CellSource::kHalves : CellSource::kCodes;
}

std::map<std::pair<int64_t, int64_t>, json> collect_cells(const Layer& layer, const PagePart& part, CellSource source,
                                                          Blobs& blobs) {
  if (source == CellSource::kScores) return collect_scores(*layer.problem(), layer, part, blobs);
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Builder>> builders;
  for (int64_t b : part.batches) {
    for (int64_t h : part.heads) {
      auto& builder = builders[{b, h}];
      if (source == CellSource::kHalves) builder = std::make_unique<HalvesBuilder>();
      else builder = std::make_unique<CodesBuilder>(sequence_of(layer, b), part.overview_side);
    }
  }
  for_each_row(layer, [&](const WeightRow& row) {
    const auto at = builders.find({row.batch, row.head});
    if (at != builders.end()) at->second->add(row);
  });
  std::map<std::pair<int64_t, int64_t>, json> result;
  for (auto& [place, builder] : builders) result[place] = builder->finish(blobs);
  return result;
}

}  // namespace qkv::cli
