// The forward pass: tiles of queries go through blocks of keys, running softmax state in hand.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/forward.h"
#include "attention/mask_band.h"
#include "attention/matrices.h"
#include "attention/overlap.h"
#include "attention/plan.h"
#include "attention/row_statistics.h"
#include "attention/tile_state.h"
#include "core/parallel.h"

namespace qkv {
namespace {

/// The views of Outputs, checked.
struct Targets {
  Targets(const Bound& b, const Outputs& o) {
    constexpr const char* kName = "forward";
    const DType sums = b.is_double() ? DType::kFloat64 : DType::kFloat32;
    out = check_output(b, o.out, kName, "out", b.query.type, b.value_dim);
    lse = check_output(b, o.lse, kName, "lse", sums, -1);
    row_max = check_output(b, o.row_max, kName, "row_max", sums, -1);
    row_sum = check_output(b, o.row_sum, kName, "row_sum", sums, -1);
    statistics = RowStatisticsOutputs(b, o.rows, kName);
  }
  RowsOf out, lse, row_max, row_sum;
  RowStatisticsOutputs statistics;
};

template <class T> class Forward {
 public:
  Forward(const Bound& b, const Targets& to, const Plan& plan, const Call& call, Workspace::Impl& workspace)
      : b_(b), to_(to), plan_(plan), call_(call), workspace_(workspace), steps_(b) {}

  void run() {
    workspace_.prepare_leases(leases(call_, plan_), scratch_bytes());
    Carver carver(workspace_.call.reserve(shared_bytes()));
    lay_out(carver);
    for (size_t first = 0; first < plan_.slots.size();) {
      const size_t last = masks_.fill(b_, plan_, first, call_);
      const int64_t begin = plan_.slots[first].first_item;
      const int64_t end = last < plan_.slots.size() ? plan_.slots[last].first_item : plan_.items;
      parallel(call_, end - begin, [&](int64_t i) { item(begin + i); });
      first = last;
    }
    if (plan_.partial_tiles > 0) merge_chunks();
  }

  static int leases(const Call& call, const Plan& plan) {
    const Executor& executor = call.executor ? *call.executor : default_executor();
    return int(std::min<int64_t>(executor.concurrency(), std::max<int64_t>(plan.items, 1)));
  }
  /// Of one work item.
  size_t scratch_bytes() const {
    Carver c;
    lay_out_item(c, nullptr, nullptr);
    return c.used();
  }
  /// Shared by all items: partial results, and the masks of some slots at a time.
  size_t shared_bytes() {
    Carver c;
    lay_out(c);
    return c.used();
  }

 private:
  void lay_out(Carver& c) {
    masks_.carve(b_, plan_, c, workspace_.arena);
    partials_ = c.take<T>(plan_.partial_tiles * int64_t(partial_size() / sizeof(T)));
  }
  /// One tile's state for one chunk, as it waits to be merged.
  size_t partial_size() const {
    Carver c;
    TileSums<T>().carve(c, b_, most_lanes(), to_.statistics.top, to_.statistics.wanted());
    return c.used();
  }
  int most_lanes() const { return kernels::kMaxLanes; }
  TileSums<T> partial(int64_t n) const {
    Carver c(reinterpret_cast<std::byte*>(partials_) + size_t(n) * partial_size());
    TileSums<T> sums;
    sums.carve(c, b_, most_lanes(), to_.statistics.top, to_.statistics.wanted());
    return sums;
  }

  void lay_out_item(Carver& c, TileState<T>** states, BlockScratch<T>* scratch) const {
    TileState<T>* all = c.take<TileState<T>>(plan_.most_tiles);
    BlockScratch<T> own;
    (scratch ? *scratch : own).carve(c, b_, plan_.most_tiles);
    TileState<T> counting;
    for (int n = 0; n < plan_.most_tiles; ++n)
      (states ? *new (all + n) TileState<T> : counting).carve(c, b_, to_.statistics.top, to_.statistics.wanted());
    if (states) *states = all;
  }

  /// One unit of a slot, all chunks or one.
  void item(int64_t number) {
    const Slot& slot = plan_.slot_of_item(number);
    const int unit = int((number - slot.first_item) / slot.chunks),
              chunk = int((number - slot.first_item) % slot.chunks);
    const Workspace::Impl::Lease lease(workspace_, scratch_bytes());
    Carver carver(lease.data());
    TileState<T>* states = nullptr;
    BlockScratch<T> scratch;
    lay_out_item(carver, &states, &scratch);
    const Entry& e = b_.entries[size_t(slot.batch)];
    KeyRange hull{std::numeric_limits<int32_t>::max(), 0};
    for (int n = 0; n < slot.tiles; ++n) {
      plan_.tile(b_, slot.batch, unit, slot.first_tile + n, states[n].tile);
      states[n].decode = plan_.rows_of(slot.batch) == Rows::kDecode;
      states[n].start(b_, steps_, scratch);
      const KeyRange h = states[n].tile.hull;
      if (!h.empty()) hull = {std::min(hull.first, h.first), std::max(hull.last, h.last)};
    }
    const KeyRange blocks = blocks_of(e, hull);
    constexpr int kBlocks = kernels::kChunk / kernels::kKeyBlock;
    const int first_chunk = e.key_start / kernels::kChunk + chunk;
    for (int c = slot.chunks > 1 ? first_chunk : blocks.first / kBlocks; c * kBlocks < blocks.last; ++c) {
      for (int n = 0; n < slot.tiles; ++n) states[n].begin_chunk(b_);
      const int last = std::min(blocks.last, (c + 1) * kBlocks);
      for (int block = std::max(blocks.first, c * kBlocks); block < last; ++block) {
        stop_point(call_.stop);
        steps_.block(b_, masks_, slot, unit, block, {states, size_t(slot.tiles)}, scratch);
      }
      for (int n = 0; n < slot.tiles; ++n) states[n].end_chunk(b_, steps_);
      if (slot.chunks > 1) break;
    }
    for (int n = 0; n < slot.tiles; ++n) {
      if (slot.chunks == 1) finish(states[n].tile, states[n].total, scratch);
      else partial(partial_number(slot, unit, n, chunk)).copy_from(states[n].total, b_, states[n].tile.lanes);
    }
  }

  static int64_t partial_number(const Slot& slot, int unit, int tile, int chunk) {
    return slot.first_tile_of_call + (int64_t{unit} * slot.tiles + tile) * slot.chunks + chunk;
  }

  /// Chunks that were items of their own, put together in ascending order.
  void merge_chunks() {
    parallel(call_, int64_t(plan_.slots.size()), [&](int64_t number) {
      const Slot& slot = plan_.slots[size_t(number)];
      if (slot.chunks == 1) return;
      const Workspace::Impl::Lease lease(workspace_, scratch_bytes());
      Carver carver(lease.data());
      TileState<T>* states = nullptr;
      BlockScratch<T> scratch;
      lay_out_item(carver, &states, &scratch);
      TileState<T>& state = states[0];
      for (int unit = 0; unit < plan_.units(slot.batch); ++unit)
        for (int n = 0; n < slot.tiles; ++n) {
          plan_.tile(b_, slot.batch, unit, slot.first_tile + n, state.tile);
          state.total.reset(b_, state.tile.lanes);
          for (int chunk = 0; chunk < slot.chunks; ++chunk)
            state.total.merge(partial(partial_number(slot, unit, n, chunk)), b_, steps_, state.tile);
          finish(state.tile, state.total, scratch);
        }
    });
  }

  /// Sinks, the division, and everything written where it belongs.
  void finish(const RowTile& t, TileSums<T>& s, BlockScratch<T>& scratch) {
    T keys_m[RowTile::kPadded], keys_l[RowTile::kPadded];
    std::copy_n(s.m, t.lanes, keys_m);
    std::copy_n(s.l, t.lanes, keys_l);
    if (b_.sinks_given) {
      T sink[RowTile::kPadded] = {};
      for (int r = 0; r < t.lanes; ++r) sink[r] = T(b_.sink(t.head[r]));
      steps_.prefill.merge_sink(s.m, s.l, s.o, sink, b_.value_dim, t.lanes);
    }
    if (b_.zero_key) {
      const T sink[RowTile::kPadded] = {};
      steps_.prefill.merge_sink(s.m, s.l, s.o, sink, b_.value_dim, t.lanes);
    }
    for (int r = 0; r < t.rows; ++r) write_sums(t, r, s.m[r], s.l[r]);
    if (to_.statistics.wanted()) write_statistics(to_.statistics, t, s.rows, keys_m, keys_l, s.m, s.l);
    if (!to_.out) return;
    steps_.prefill.normalise(s.l, s.o, b_.value_dim, t.lanes);
    for (int h = 0; h < t.heads; ++h) write_rows(t, h, s.o, scratch);
  }
  void write_sums(const RowTile& t, int r, T m, T l) {
    const auto put = [&](const RowsOf& to, T value) {
      if (to) *static_cast<T*>(t.in(to, r)) = value;
    };
    put(to_.lse, l == 0 ? -std::numeric_limits<T>::infinity() : T(std::log(double(l)) + double(m)));
    put(to_.row_max, m);
    put(to_.row_sum, l);
  }
  void write_rows(const RowTile& t, int h, const T* o, BlockScratch<T>& scratch) {
    const int n = t.rows_of_head(), first = h * n;
    const RowKernels& rows = steps_.rows;
    void* to = t.in(to_.out, first);
    if (to_.out.type == steps_.type && to_.out.column == 1) {
      rows.transpose(o + first, t.lanes, b_.value_dim, n, T(1), static_cast<T*>(to), to_.out.row);
    } else {
      rows.transpose(o + first, t.lanes, b_.value_dim, n, T(1), scratch.rows, b_.value_dim);
      rows.store(scratch.rows, b_.value_dim, n, b_.value_dim, to, to_.out.type, to_.out.row, to_.out.column);
    }
  }

  using RowKernels = kernels::RowKernels<T>;
  const Bound& b_;
  const Targets& to_;
  const Plan& plan_;
  const Call& call_;
  Workspace::Impl& workspace_;
  Steps<T> steps_;
  MaskBand masks_;
  T* partials_ = nullptr;
};

template <class T> int64_t scratch_as(const Bound& b, const Plan& plan, const Call& call, Workspace::Impl& workspace) {
  const Targets to(b, Outputs{});
  Forward<T> f(b, to, plan, call, workspace);
  return int64_t(f.shared_bytes()) + Forward<T>::leases(call, plan) * int64_t(f.scratch_bytes());
}

template <class T>
void forward_as(const Bound& b, const Outputs& outputs, const Call& call, Workspace::Impl& workspace) {
  Targets to(b, outputs);
  const Matrices<T> matrices(b, outputs);
  matrices.ask_for_sums(workspace, to.row_max, to.row_sum);
  const auto& kernels = kernels::prefill_kernels<T>();
  const Plan plan(b, kernels.query_tile, kernels.vector, workspace.arena);
  Forward<T>(b, to, plan, call, workspace).run();
  matrices.write(workspace, to.row_max, to.row_sum, call);
}

}  // namespace

int64_t forward_scratch(const Bound& b, const Plan& plan, const Call& call, Workspace::Impl& workspace) {
  return b.is_double() ? scratch_as<double>(b, plan, call, workspace) : scratch_as<float>(b, plan, call, workspace);
}

void forward(const Attention& a, const Inputs& in, const Outputs& outputs, const Call& call) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  const CallArena::Scope scope(workspace.arena);
  stop_point(call.stop);
  const Bound b(a, in, workspace.arena, "forward", outputs.out ? Values::kNeeded : Values::kOptional);
  check::apart("forward", in, outputs, workspace.arena);
  if (!check::asks_for_anything(outputs)) return;  // the checks alone
  if (b.is_double()) forward_as<double>(b, outputs, call, workspace);
  else forward_as<float>(b, outputs, call, workspace);
}

}  // namespace qkv
