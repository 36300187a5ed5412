// A sweep over finished weights, or over the gradients by them. Key blocks outside, rows inside: whoever adds up columns finishes
// one block after another.
#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "attention/check.h"
#include "attention/dropout.h"
#include "attention/gradient_targets.h"
#include "attention/matrices.h"
#include "attention/tile_state.h"
#include "core/ceil_div.h"
#include "core/format.h"
#include "core/parallel.h"

namespace qkv {
namespace {

constexpr int kBlock = kernels::kKeyBlock;
constexpr int32_t kColumns = 2048;  // of a work item, so that cells of a picture belong to one
constexpr int64_t kWave = 64;       // items whose forks live at the same time; fixed, so that sums have one order

/// Where weights come from, and what is wanted of the pairs.
struct Wish {
  RowsOf row_max{}, row_sum{};   // for weights
  const Given* given = nullptr;  // for gradients
  PairGradient what = PairGradient::kWeight;
};

template <class T> class Sweep {
 public:
  Sweep(const Bound& b, const Wish& wish, const Call& call, Workspace::Impl& workspace)
      : b_(b), wish_(wish), call_(call), workspace_(workspace), steps_(b) {
    chunks_ = ceil_div(b.longest_key, kColumns);
    Carver size;
    lay_out(size, counted_, counted_scratch_);
    bytes_ = size.used();
  }

  void run(std::span<const ObserverRef> who) {
    std::vector<std::unique_ptr<passes::Observer>> empty;
    for (const ObserverRef& o : who) {
      empty.push_back(o.fork());
      empty.back()->begin({b_.batch(), b_.query_heads, b_.longest_query, b_.longest_key});
    }
    const int64_t items = b_.batch() * b_.query_heads * chunks_;
    std::vector<std::vector<std::unique_ptr<passes::Observer>>> forks(size_t(std::min(kWave, items)));
    for (int64_t first = 0; first < items; first += kWave) {
      const int64_t n = std::min(kWave, items - first);
      parallel(call_, n, [&](int64_t i) {
        auto& mine = forks[size_t(i)];
        mine.clear();
        for (const auto& o : empty) mine.push_back(o->fork());
        item(first + i, mine);
      });
      for (int64_t i = 0; i < n; ++i)
        for (size_t o = 0; o < who.size(); ++o) who[o].join(*forks[size_t(i)][o]);
    }
  }

 private:
  void lay_out(Carver& c, TileState<T>& state, BlockScratch<T>& scratch) const {
    scratch.carve(c, b_, 1);
    state.carve(c, b_, 0, false);
  }
  /// m and l of w = exp(s - m) / l. {lanes}
  void sums_of(const RowTile& t, T* m, T* l) const {
    if (wish_.given == nullptr) return gather_sums(t, wish_.row_max, wish_.row_sum, m, l);
    std::fill_n(m, t.lanes, -std::numeric_limits<T>::infinity());
    std::fill_n(l, t.lanes, T(0));
    for (int r = 0; r < t.rows; ++r)
      std::tie(m[r], l[r]) = wish_.given->sums<T>(t.batch, t.head[r], t.first_query + t.row[r]);
  }

  /// One batch entry, one query head, kColumns columns.
  void item(int64_t number, std::vector<std::unique_ptr<passes::Observer>>& observers) {
    const Workspace::Impl::Lease lease(workspace_, bytes_);
    Carver carver(lease.data());
    TileState<T> state;
    BlockScratch<T> scratch;
    lay_out(carver, state, scratch);
    const int head = int(number / chunks_ % b_.query_heads), batch = int(number / chunks_ / b_.query_heads);
    const Entry& e = b_.entries[size_t(batch)];
    const int32_t begin = int32_t(number % chunks_) * kColumns, end = std::min(begin + kColumns, e.keys);
    const int tile = steps_.prefill.query_tile, group = b_.group();
    for (int32_t first = begin; first < end; first += kBlock)
      for (int32_t row = 0; row < e.queries; row += tile) {
        stop_point(call_.stop);
        make_tile(b_, batch, b_.key_head(head), b_.tiled ? head / b_.key_heads : head % group, 1, row,
                  std::min(tile, e.queries - row), steps_.prefill.vector, state.tile);
        show(state, scratch, {first, std::min(first + kBlock, end)}, observers);
      }
  }

  void show(TileState<T>& state, BlockScratch<T>& scratch, KeyRange columns,
            std::vector<std::unique_ptr<passes::Observer>>& observers) {
    const RowTile& t = state.tile;
    const Part part = look(b_, t, columns, scratch.words);
    if (part.cover == Cover::kHidden) return;
    const int n = part.keys();
    T m[RowTile::kPadded], l[RowTile::kPadded];
    sums_of(t, m, l);
    std::copy_n(m, t.lanes, scratch.before);
    steps_.pack_queries(b_, t, false, state.q, scratch.rows);
    const BlockRows<T> keys = steps_.fetch(b_, b_.key, t.batch, t.key_head, b_.head_dim, part.first, n, scratch.keys);
    steps_.scores(b_, state, keys, part.first, n, scratch);
    steps_.prefill.raise_max(scratch.s, n, t.lanes, part.cover == Cover::kPartial ? scratch.words : nullptr,
                             scratch.before, scratch.alpha);
    if (wish_.given != nullptr) words_of_scores(scratch.s, 1, t.lanes, t.rows, n, scratch.seen);
    steps_.prefill.weights(scratch.s, n, t.lanes, m, l);
    if (wish_.given != nullptr) to_gradients(state, scratch, part);
    number_keys(b_.entries[size_t(t.batch)], part.first, n, n + 16, scratch.column, scratch.key);
    const Sites sites{t.rows, n, 1, t.lanes, t.batch, t.head, t.row, t.query, scratch.column, scratch.key};
    for (const auto& o : observers) o->see(Tile<const T>{sites, scratch.s});
  }

  /// scratch.s {keys, lanes} holds weights and gets what is wanted of them; scratch.seen says which pairs are visible.
  void to_gradients(const TileState<T>& state, BlockScratch<T>& scratch, Part part) const {
    const RowTile& t = state.tile;
    const Given& given = *wish_.given;
    const int n = part.keys(), head = t.head[0];
    const int64_t first = t.first_query + t.row[0];  // rows of one head, one after the other
    T delta[RowTile::kPadded];
    T* dout = state.chunk.o;  // {value_dim, lanes}
    if (t.lanes > t.rows) std::fill_n(dout, int64_t{b_.value_dim} * t.lanes, T(0));
    const BlockRows<T> above = steps_.fetch(given.dout, t.batch, head, b_.value_dim, first, t.rows, scratch.rows);
    const BlockRows<T> out = steps_.fetch(given.out, t.batch, head, b_.value_dim, first, t.rows, scratch.values);
    given.deltas(t.batch, head, first, out, above, t.rows, b_.value_dim, delta);
    steps_.rows.transpose(above.first, above.stride, t.rows, b_.value_dim, T(1), dout, t.lanes);
    const BlockRows<T> values =
        steps_.fetch(b_, b_.value, t.batch, t.key_head, b_.value_dim, part.first, n, scratch.values);
    T* by_weight = scratch.score_copy;
    steps_.prefill.scores(dout, t.lanes, values.first, values.stride, n, b_.value_dim, by_weight);
    if (b_.dropout) {
      keep_of_keys(b_, t, {part.first, part.last}, scratch.keep);
      steps_.prefill.drop(by_weight, n, t.lanes, scratch.keep, T(b_.dropout.factor));
    }
    for (int j = 0; j < n; ++j)
      for (int r = 0; r < t.rows; ++r) {
        const int64_t at = int64_t{j} * t.lanes + r;
        const T weight = scratch.s[at], dweight = by_weight[at];
        const bool seen = scratch.seen[j] >> r & 1;
        scratch.s[at] = !seen                                 ? T(0)
                        : wish_.what == PairGradient::kWeight ? dweight
                        : wish_.what == PairGradient::kScore  ? weight * (dweight - delta[r])
                                                              : weight * dweight;
      }
  }

  const Bound& b_;
  const Wish& wish_;
  const Call& call_;
  Workspace::Impl& workspace_;
  Steps<T> steps_;
  int64_t chunks_ = 0;
  size_t bytes_ = 0;
  TileState<T> counted_;
  BlockScratch<T> counted_scratch_;
};

void sweep(const Bound& b, const Wish& wish, std::span<const ObserverRef> observers, const Call& call,
           Workspace::Impl& workspace) {
  if (b.is_double()) Sweep<double>(b, wish, call, workspace).run(observers);
  else Sweep<float>(b, wish, call, workspace).run(observers);
}

}  // namespace

void observe(const Attention& a, const Inputs& in, const RowSums& sums, std::span<const ObserverRef> observers,
             const Call& call) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  const CallArena::Scope scope(workspace.arena);
  stop_point(call.stop);
  const Bound b(a, in, workspace.arena, "observe");
  for (const auto& [name, view] : {std::pair{"row_max", sums.row_max}, std::pair{"row_sum", sums.row_sum}})
    if (!view) option_error("observe: {} is missing; ask forward() for it and pass it on", name);
  const DType type = b.is_double() ? DType::kFloat64 : DType::kFloat32;
  sweep(b,
        {check_output(b, sums.row_max, "observe", "row_max", type, -1),
         check_output(b, sums.row_sum, "observe", "row_sum", type, -1)},
        observers, call, workspace);
}

void observe_gradients(const Attention& a, const Inputs& in, const Upstream& up, PairGradient what,
                       std::span<const ObserverRef> observers, const Call& call) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  const CallArena::Scope scope(workspace.arena);
  stop_point(call.stop);
  const Bound b(a, in, workspace.arena, "observe_gradients", Values::kNeeded);
  const Given given(b, up, "observe_gradients");
  sweep(b, {.given = &given, .what = what}, observers, call, workspace);
}

}  // namespace qkv
