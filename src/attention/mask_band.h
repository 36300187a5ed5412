// Masks that hide pairs one by one, looked at once for all heads (where they do not read the head), for so many tiles at a
// time that the memory stays small whatever the lengths are.
#pragma once
#include <cstdint>

#include "attention/plan.h"
#include "qkv/executor.h"

namespace qkv {

class MaskBand {
 public:
  /// Nothing to store where ranges say everything.
  void carve(const Bound&, const Plan&, Carver&, CallArena&);
  /// Looks at the tiles of slots [first, returned); all of them where nothing is stored.
  size_t fill(const Bound&, const Plan&, size_t first, const Call&);
  /// What a tile visits of a block, and the words of a partial part; `scratch` {kKeyBlock} is for those that are not stored.
  Part part(const Bound&, const Slot&, int unit, int n, const RowTile&, int32_t block, uint64_t* scratch,
            kernels::Words& words) const;

 private:
  struct TileMask {
    int32_t first_block, blocks;
    int64_t at;  ///< of its first block in parts_ and words_
  };
  int64_t total_blocks(const Plan&, const Bound&) const;
  static int units(const Bound& b, const Plan& p, int batch) {
    return b.masks_read_head ? p.units(batch) : p.units(batch) > 0;
  }
  int64_t tile_number(const Bound& b, const Plan& p, const Slot& s, int unit, int n) const {
    return first_tile_[&s - p.slots.data()] + int64_t{b.masks_read_head ? unit : 0} * s.tiles + n;
  }

  bool stored_ = false;
  const Plan* plan_ = nullptr;
  int64_t* first_tile_ = nullptr;  ///< {slots}
  TileMask* tiles_ = nullptr;      ///< of all slots
  int64_t capacity_ = 0;           ///< blocks
  Part* parts_ = nullptr;          ///< {capacity}
  uint64_t* words_ = nullptr;      ///< {capacity, kKeyBlock}
};

}  // namespace qkv
