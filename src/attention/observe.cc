// A sweep over finished weights. Key blocks outside, rows inside: whoever adds up columns finishes one block after another.
#include <algorithm>
#include <memory>
#include <vector>

#include "attention/check.h"
#include "attention/matrices.h"
#include "attention/tile_state.h"
#include "core/format.h"
#include "core/parallel.h"

namespace qkv {
namespace {

constexpr int kBlock = kernels::kKeyBlock;
constexpr int32_t kColumns = 2048;  // of a work item, so that cells of a picture belong to one
constexpr int64_t kWave = 64;       // items whose forks live at the same time; fixed, so that sums have one order

template <class T> class Sweep {
 public:
  Sweep(const Bound& b, const RowSums& sums, const Call& call, Workspace::Impl& workspace)
      : b_(b), call_(call), workspace_(workspace), steps_(b) {
    const DType type = kDType<T>;
    for (const auto& [name, view] : {std::pair{"row_max", sums.row_max}, std::pair{"row_sum", sums.row_sum}})
      if (!view) option_error("observe: {} is missing; ask forward() for it and pass it on", name);
    row_max_ = check_output(b, sums.row_max, "observe", "row_max", type, -1);
    row_sum_ = check_output(b, sums.row_sum, "observe", "row_sum", type, -1);
    chunks_ = (b.longest_key + kColumns - 1) / kColumns;
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
    gather_sums(t, row_max_, row_sum_, m, l);
    std::copy_n(m, t.lanes, scratch.before);
    steps_.pack_queries(b_, t, false, state.q, scratch.rows);
    const BlockRows<T> keys = steps_.fetch(b_, b_.key, t.batch, t.key_head, b_.head_dim, part.first, n, scratch.keys);
    steps_.scores(b_, state, keys, part.first, n, scratch);
    steps_.prefill.raise_max(scratch.s, n, t.lanes, part.cover == Cover::kPartial ? scratch.words : nullptr,
                             scratch.before, scratch.alpha);
    steps_.prefill.weights(scratch.s, n, t.lanes, m, l);
    for (int j = 0; j < n + 16; ++j) {
      scratch.column[j] = part.first + std::min(j, n - 1);
      scratch.key[j] = scratch.column[j] + b_.entries[size_t(t.batch)].key_start;
    }
    const Sites sites{t.rows, n, 1, t.lanes, t.batch, t.head, t.row, t.query, scratch.column, scratch.key};
    for (const auto& o : observers) o->see(Tile<const T>{sites, scratch.s});
  }

  const Bound& b_;
  const Call& call_;
  Workspace::Impl& workspace_;
  Steps<T> steps_;
  RowsOf row_max_, row_sum_;
  int64_t chunks_ = 0;
  size_t bytes_ = 0;
  TileState<T> counted_;
  BlockScratch<T> counted_scratch_;
};

}  // namespace

void observe(const Attention& a, const Inputs& in, const RowSums& sums, std::span<const ObserverRef> observers,
             const Call& call) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  const CallArena::Scope scope(workspace.arena);
  stop_point(call.stop);
  const Bound b(a, in, workspace.arena, "observe");
  if (b.is_double()) Sweep<double>(b, sums, call, workspace).run(observers);
  else Sweep<float>(b, sums, call, workspace).run(observers);
}

}  // namespace qkv
