#include "qkv/facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "core/parallel.h"
#include "qkv/part.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

/// Which key stands at a place for a query at `position`, as positions.
int64_t key_at(Place place, int64_t position, int64_t first, int64_t last) {
  switch (place) {
    case Place::kSelf: return position;
    case Place::kPrevious: return position - 1;
    case Place::kNext: return position + 1;
    case Place::kFirst: return first;
    case Place::kLast: return last;
  }
  return -1;
}

/// Positions of the keys of a batch entry, both ends included.
struct KeyPositions {
  int64_t first = 0, last = -1;
};

using Shares = std::array<double, kPlaces>;

/// Sums weights by place. Looks at a few pairs of each row only.
class PlaceObserver final : public passes::Observer {
 public:
  PlaceObserver(int64_t batch, int64_t heads, KeyPositions keys, const std::vector<bool>& padding)
      : batch_(batch), keys_(keys), padding_(padding), sums_(static_cast<size_t>(heads)) {}
  std::unique_ptr<passes::Observer> fork() const override {
    return std::make_unique<PlaceObserver>(batch_, static_cast<int64_t>(sums_.size()), keys_, padding_);
  }
  void see(const Tile<const float>& t) override { look(t); }
  void see(const Tile<const double>& t) override { look(t); }
  void join(const passes::Observer& later) override {
    const auto& other = static_cast<const PlaceObserver&>(later);
    for (size_t h = 0; h < sums_.size(); ++h) {
      for (size_t p = 0; p < kPlaces; ++p) sums_[h][p] += other.sums_[h][p];
    }
  }
  const std::vector<Shares>& sums() const { return sums_; }

 private:
  template <class T> void look(const Tile<const T>& t) {
    if (t.batch != batch_ || t.keys == 0) return;
    for (int r = 0; r < t.rows; ++r) {
      if (padding_[static_cast<size_t>(t.row[r])]) continue;
      for (int p = 0; p < kPlaces; ++p) {
        const int64_t j = key_at(static_cast<Place>(p), t.query[r], keys_.first, keys_.last) -
                          t.key[0];  // keys of a tile are consecutive
        if (j >= 0 && j < t.keys)
          sums_[static_cast<size_t>(t.head[r])][static_cast<size_t>(p)] +=
              static_cast<double>(t(r, static_cast<int>(j)));
      }
    }
  }
  int64_t batch_;
  KeyPositions keys_;
  const std::vector<bool>& padding_;
  std::vector<Shares> sums_;
};

/// A NaN is to be seen, and must not break the order.
float rank_of(float weight) { return std::isnan(weight) ? INFINITY : weight; }

bool stronger(const Link& a, const Link& b) {
  if (rank_of(a.weight) != rank_of(b.weight)) return rank_of(a.weight) > rank_of(b.weight);
  return a.query != b.query ? a.query < b.query : a.key < b.key;
}

void keep_strongest(std::vector<Link>& links, int count) {
  std::sort(links.begin(), links.end(), stronger);
  if (links.size() > static_cast<size_t>(count)) links.resize(static_cast<size_t>(count));
}

/// Divides what was summed over rows: entropies by the number of rows, shares by that of rows that have such a key.
void average(HeadFacts& f, const Shares& sums, const std::vector<int64_t>& positions, KeyPositions keys) {
  const double seen = static_cast<double>(std::max<size_t>(1, positions.size()));
  f.entropy /= seen;
  f.effective_keys /= seen;
  for (int p = 0; p < kPlaces; ++p) {
    int64_t rows = 0;
    for (int64_t position : positions) {
      const int64_t key = key_at(static_cast<Place>(p), position, keys.first, keys.last);
      rows += key >= keys.first && key <= keys.last ? 1 : 0;
    }
    f.share[p] = rows > 0 ? sums[static_cast<size_t>(p)] / static_cast<double>(rows) : -1;
  }
}

/// What forward() hands out about the rows of a problem.
struct Rows {
  Array row_max, row_sum, entropy, effective, visible, weights, columns;
};

std::vector<int64_t> row_shape(const Problem& p) {
  if (p.packed) return {p.inputs.query.shape[0], p.sizes.heads};
  return {p.sizes.batch, p.sizes.heads, p.sizes.queries};
}

Rows compute_rows(const Problem& p, int count, Progress& progress) {
  const DType sum = sum_type(p);
  const std::vector<int64_t> shape = row_shape(p);
  std::vector<int64_t> top = shape;
  top.push_back(count);
  Rows rows{Array(sum, shape),
            Array(sum, shape),
            Array(DType::kFloat32, shape),
            Array(DType::kFloat32, shape),
            Array(DType::kInt32, shape),
            Array(DType::kFloat32, top),
            Array(DType::kInt32, top)};
  Outputs out;
  out.row_max = rows.row_max.view();
  out.row_sum = rows.row_sum.view();
  out.rows.entropy = rows.entropy.view().as<float>();
  out.rows.effective_keys = rows.effective.view().as<float>();
  out.rows.visible_keys = rows.visible.view().as<int32_t>();
  out.rows.top_weights = rows.weights.view().as<float>();
  out.rows.top_indices = rows.columns.view().as<int32_t>();
  progress.forward(p.attention, p.inputs, out);
  return rows;
}

/// Without padding at either end.
KeyPositions keys_of(const Problem& p, int64_t batch) {
  const int64_t start = key_start_of(p, batch);
  KeyPositions keys{start, start + valid_keys(p, batch) - 1};
  if (p.packed || p.sizes.queries != p.sizes.keys) return keys;
  const std::vector<bool> padding = padding_of(p, batch);
  while (keys.first <= keys.last && padding[static_cast<size_t>(keys.first - start)]) ++keys.first;
  while (keys.first <= keys.last && padding[static_cast<size_t>(keys.last - start)]) --keys.last;
  return keys;
}

/// Index of a row in the statistics: {B, H, L}, or packed {T, H}.
int64_t row_index(const Problem& p, int64_t batch, int64_t head, int64_t row) {
  if (p.packed) return (p.inputs.cumulative_query_lengths(batch) + row) * p.sizes.heads + head;
  return (batch * p.sizes.heads + head) * p.sizes.queries + row;
}

HeadFacts facts_of_head(const Problem& p, const Rows& rows, int64_t batch, int64_t head, int count,
                        const Shares& sums) {
  HeadFacts f;
  std::vector<int64_t> positions;
  const auto* entropy = static_cast<const float*>(rows.entropy.data());
  const auto* effective = static_cast<const float*>(rows.effective.data());
  const auto* visible = static_cast<const int32_t*>(rows.visible.data());
  const auto* weights = static_cast<const float*>(rows.weights.data());
  const auto* columns = static_cast<const int32_t*>(rows.columns.data());
  const std::vector<bool> padding = padding_of(p, batch);
  for (int64_t i = 0; i < queries_of(p, batch); ++i) {
    if (padding[static_cast<size_t>(i)]) {
      ++f.padding_rows;
      continue;
    }
    const int64_t at = row_index(p, batch, head, i);
    if (visible[at] == 0) {
      ++f.empty_rows;
      continue;
    }
    f.entropy += static_cast<double>(entropy[at]);
    f.effective_keys += static_cast<double>(effective[at]);
    positions.push_back(i + offset_of(p, batch));
    for (int64_t n = at * count; n < (at + 1) * count; ++n) {
      if (columns[n] >= 0) f.links.push_back({i, columns[n], weights[n]});
    }
    if (f.links.size() > 4096) keep_strongest(f.links, count);
  }
  average(f, sums, positions, keys_of(p, batch));
  keep_strongest(f.links, count);
  return f;
}

}  // namespace

const char* name(Place p) {
  switch (p) {
    case Place::kSelf: return "itself";
    case Place::kPrevious: return "the previous token";
    case Place::kNext: return "the next token";
    case Place::kFirst: return "the first token";
    case Place::kLast: return "the last token";
  }
  return "";
}

Place HeadFacts::favourite() const { return static_cast<Place>(std::max_element(share, share + kPlaces) - share); }

std::vector<bool> padding_of(const Problem& p, int64_t batch) {
  const Inputs& in = p.inputs;
  std::vector<bool> padding(static_cast<size_t>(queries_of(p, batch)));
  if (p.packed || p.sizes.queries != p.sizes.keys) return padding;
  const auto hides = [&](View<const void> mask, bool keep, int64_t key) {
    if (!mask || mask.dtype != DType::kBool || mask.shape[1] != 1 || mask.shape[2] != 1) return false;
    return mask.as<const bool>().data[mask.broadcast_offset(batch, 0, 0, key)] != keep;
  };
  for (int64_t i = 0; i < p.sizes.queries; ++i) {
    padding[static_cast<size_t>(i)] =
        i >= valid_keys(p, batch) || hides(in.keep_mask, true, i) || hides(in.ignore_mask, false, i);
  }
  return padding;
}

std::vector<HeadFacts> facts_of(const Problem& p, int64_t batch, int count, Progress& progress) {
  const Rows rows = compute_rows(p, count, progress);
  const std::vector<bool> padding = padding_of(p, batch);
  PlaceObserver places(batch, p.sizes.heads, keys_of(p, batch), padding);
  observe(p.attention, p.inputs, {rows.row_max.view(), rows.row_sum.view()}, {places}, progress.call());
  std::vector<HeadFacts> facts;
  for (int64_t h = 0; h < p.sizes.heads; ++h)
    facts.push_back(facts_of_head(p, rows, batch, h, count, places.sums()[static_cast<size_t>(h)]));
  return facts;
}

HeadFacts facts_of_weights(View<const void> w, int64_t batch, int64_t head, int64_t offset, int count,
                           const Call& call) {
  const int64_t queries = w.shape[2], keys = w.shape[3];
  const KeyPositions ends{0, keys - 1};
  HeadFacts f;
  std::vector<int64_t> positions;
  Shares sums{};
  for (int64_t i = 0; i < queries; ++i) {
    stop_point(call.stop);
    double sum = 0, plogp = 0;
    for (int64_t j = 0; j < keys; ++j) {
      const double weight = element(w, batch, head, i, j);
      sum += weight;
      if (weight > 0) plogp += weight * std::log(weight);
      f.links.push_back({i, j, static_cast<float>(weight)});
    }
    keep_strongest(f.links, count);
    if (!(sum > 0)) {
      ++f.empty_rows;
      continue;
    }
    const double entropy = std::max(0.0, std::log(sum) - plogp / sum);  // of the row divided by its sum
    f.entropy += entropy;
    f.effective_keys += std::exp(entropy);
    positions.push_back(i + offset);
    for (int place = 0; place < kPlaces; ++place) {
      const int64_t j = key_at(static_cast<Place>(place), positions.back(), ends.first, ends.last);
      if (j >= 0 && j < keys) sums[static_cast<size_t>(place)] += element(w, batch, head, i, j);
    }
  }
  average(f, sums, positions, ends);
  return f;
}

}  // namespace qkv::cli
