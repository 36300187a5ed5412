#include "attention/mask_band.h"

#include <algorithm>

#include "core/parallel.h"

namespace qkv {
namespace {

constexpr int64_t kBandBlocks = 8192;  // 8 MB of words

}  // namespace

void MaskBand::carve(const Bound& b, const Plan& plan, Carver& c, CallArena& arena) {
  plan_ = &plan;
  stored_ = b.has_general_masks();
  if (!stored_) return;
  if (!tiles_) {  // the second time only lays out
    first_tile_ = arena.array_of<int64_t>(plan.slots.size());
    int64_t n = 0;
    for (size_t s = 0; s < plan.slots.size(); ++s) {
      first_tile_[s] = n;
      n += int64_t{units(b, plan, plan.slots[s].batch)} * plan.slots[s].tiles;
    }
    tiles_ = arena.array_of<TileMask>(size_t(n));
    RowTile t;
    for (const Slot& s : plan.slots) {
      int64_t blocks = 0;
      for (int unit = 0; unit < units(b, plan, s.batch); ++unit)
        for (int i = 0; i < s.tiles; ++i) {
          plan.tile(b, s.batch, unit, s.first_tile + i, t);
          const KeyRange range = blocks_of(b.entries[size_t(s.batch)], t.hull);
          tiles_[tile_number(b, plan, s, unit, i)] = {range.first, range.last - range.first, 0};
          blocks += range.last - range.first;
        }
      capacity_ = std::max(capacity_, blocks);
    }
    capacity_ = std::max(capacity_, std::min(kBandBlocks, total_blocks(plan, b)));
  }
  parts_ = c.take<Part>(capacity_);
  words_ = c.take<uint64_t>(capacity_ * kernels::kKeyBlock);
}

int64_t MaskBand::total_blocks(const Plan& plan, const Bound& b) const {
  if (plan.slots.empty()) return 0;
  const Slot& last = plan.slots.back();
  const int64_t n = first_tile_[plan.slots.size() - 1] + int64_t{units(b, plan, last.batch)} * last.tiles;
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += tiles_[i].blocks;
  return sum;
}

size_t MaskBand::fill(const Bound& b, const Plan& plan, size_t first, const Call& call) {
  if (!stored_) return plan.slots.size();
  int64_t used = 0, begin = first_tile_[first], end = begin;
  size_t slot = first;
  for (; slot < plan.slots.size(); ++slot) {
    const int64_t n = int64_t{units(b, plan, plan.slots[slot].batch)} * plan.slots[slot].tiles;
    int64_t blocks = 0;
    for (int64_t i = end; i < end + n; ++i) blocks += tiles_[i].blocks;
    if (slot > first && used + blocks > capacity_) break;
    for (int64_t i = end; i < end + n; ++i) {
      tiles_[i].at = used;
      used += tiles_[i].blocks;
    }
    end += n;
  }
  parallel(call, end - begin, [&](int64_t item) {
    const int64_t number = begin + item;
    const auto after = std::upper_bound(first_tile_ + first, first_tile_ + slot, number);
    const Slot& s = plan.slots[size_t(after - 1 - first_tile_)];
    const int64_t of_slot = number - *(after - 1);
    RowTile t;
    plan.tile(b, s.batch, int(of_slot / s.tiles), s.first_tile + int(of_slot % s.tiles), t);
    const TileMask& mask = tiles_[number];
    for (int32_t i = 0; i < mask.blocks; ++i) {
      stop_point(call.stop);
      const KeyRange columns = columns_of_block(b.entries[size_t(s.batch)], mask.first_block + i);
      parts_[mask.at + i] = look(b, t, columns, words_ + (mask.at + i) * kernels::kKeyBlock);
    }
  });
  return slot;
}

Part MaskBand::part(const Bound& b, const Slot& s, int unit, int n, const RowTile& t, int32_t block, uint64_t* scratch,
                    kernels::Words& words) const {
  Part part;
  words = scratch;
  if (!stored_) {
    part = look(b, t, columns_of_block(b.entries[size_t(s.batch)], block), scratch);
  } else {
    const TileMask& mask = tiles_[tile_number(b, *plan_, s, unit, n)];
    const int32_t i = block - mask.first_block;
    if (i >= 0 && i < mask.blocks) {
      part = parts_[mask.at + i];
      words = words_ + (mask.at + i) * kernels::kKeyBlock;
    }
  }
  if (part.cover != Cover::kPartial) words = nullptr;
  return part;
}

}  // namespace qkv
