// RowPositions, checked.
#pragma once
#include "qkv/positions.h"

namespace qkv {

/// Throws where the views do not fit {batch, length} or a position is too far from 0.
void check_positions(const char* function, const RowPositions&, int64_t batch, int64_t length);

inline int64_t position_of(const RowPositions& p, int64_t b, int64_t l) {
  return p.offset + (p.offsets ? p.offsets.data[p.offsets.broadcast_offset(b)] : 0) +
         (p.ids ? int64_t{p.ids(p.ids.shape[0] == 1 ? 0 : b, l)} : l);
}

}  // namespace qkv
