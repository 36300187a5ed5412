// Which path a call will take, and why.
#include <bit>

#include "attention/forward.h"
#include "attention/plan.h"
#include "core/format.h"
#include "core/parallel.h"
#include "core/workspace.h"
#include "kernels/kernels.h"

namespace qkv {
namespace {

/// Counts what the tiles of one unit visit; `times` units are alike.
void count_tiles(const Bound& b, const Plan& plan, int batch, int unit, int64_t times, const Call& call, Path& path) {
  const Entry& e = b.entries[size_t(batch)];
  const KeyRange all = blocks_of(e, {0, e.keys});
  RowTile t;
  uint64_t words[kernels::kKeyBlock];
  for (int n = 0; n < plan.tiles_of(batch); ++n) {
    plan.tile(b, batch, unit, n, t);
    const KeyRange blocks = blocks_of(e, t.hull);
    path.skipped_tiles += times * (all.last - all.first - (blocks.last - blocks.first));
    for (int32_t block = blocks.first; block < blocks.last; ++block) {
      stop_point(call.stop);
      const Part part = look(b, t, columns_of_block(e, block), words);
      if (part.cover == Cover::kHidden) {
        path.skipped_tiles += times;
        continue;
      }
      path.visited_tiles += times;
      int64_t pairs = int64_t{t.rows} * part.keys();
      if (part.cover == Cover::kFull) {
        path.full_tiles += times;
      } else {
        pairs = 0;
        for (int j = 0; j < part.keys(); ++j) pairs += std::popcount(words[j]);
      }
      path.visible_pairs += times * pairs;
    }
  }
}

/// Highway's name of an instruction set as its maker calls it.
std::string common_name(const std::string& target) {
  return target.starts_with("AVX3") ? "AVX-512" + target.substr(4) : target;
}

std::string reason_of(const Bound& b, const Plan& plan) {
  if (b.batch() == 0 || plan.items == 0) return "nothing to compute: a size is 0";
  const int rows = b.group() * b.entries[0].queries;
  switch (plan.rows_of(0)) {
    case Rows::kDecode:
      return fmt::format("{} rows share a key head, at most {}: each key and value is read once for all of them", rows,
                         kernels::DecodeKernels<float>::kMaxRows);
    case Rows::kFolded:
      return fmt::format("{} queries of {} heads share a key head: the heads are folded into the lanes",
                         b.entries[0].queries, b.group());
    case Rows::kPerHead: break;
  }
  return fmt::format("{} queries a head fill tiles of {}", b.entries[0].queries, plan.query_tile);
}

}  // namespace

Path find_path(const Attention& a, const Inputs& in, const Call& call) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  const CallArena::Scope scope(workspace.arena);
  const Bound b(a, in, workspace.arena, "find_path");
  const auto& f = kernels::prefill_kernels<float>();
  const auto& d = kernels::prefill_kernels<double>();
  const Plan plan(b, b.is_double() ? d.query_tile : f.query_tile, b.is_double() ? d.vector : f.vector, workspace.arena);
  Path path;
  path.kernel = b.batch() > 0 && plan.rows_of(0) == Rows::kDecode ? "decode" : "prefill";
  path.instruction_set = common_name(f.instruction_set);
  path.query_tile = path.kernel == "decode" ? kernels::DecodeKernels<float>::kMaxRows : plan.query_tile;
  path.key_block = kernels::kKeyBlock;
  path.work_items = plan.items;
  path.scratch_bytes = forward_scratch(b, plan, call, workspace) + int64_t(workspace.arena.bytes());
  for (int batch = 0; batch < b.batch(); ++batch) {
    const int units = plan.units(batch), looked_at = b.masks_read_head ? units : std::min(units, 1);
    for (int unit = 0; unit < looked_at; ++unit)
      count_tiles(b, plan, batch, unit, b.masks_read_head ? 1 : units, call, path);
  }
  path.reason = reason_of(b, plan);
  return path;
}

std::string explain_path(const Attention& a, const Inputs& in, const Call& call) {
  const Path p = find_path(a, in, call);
  return fmt::format(
      "{} on {}: {}.\n"
      "tiles of at most {} rows against blocks of {} keys: {} visited ({} of them without a mask), {} skipped, {} visible pairs\n"
      "{} work items, at most {:.1f} MB of scratch; score steps: {}\n",
      p.kernel, p.instruction_set, p.reason, p.query_tile, p.key_block, p.visited_tiles, p.full_tiles, p.skipped_tiles,
      p.visible_pairs, p.work_items, double(p.scratch_bytes) / 1e6, a.scores().size());
}

}  // namespace qkv
