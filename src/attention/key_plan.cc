#include "attention/key_plan.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace qkv {
namespace {

/// Columns that a batch entry stores, whether they exist or not.
int64_t stored_columns(const Bound& b, int batch) { return b.packed ? b.entries[size_t(batch)].keys : b.longest_key; }

}  // namespace

std::span<const KeyItem> plan_keys(const Bound& b, KeyOrder order, CallArena& arena) {
  const int64_t lines = int64_t{b.batch()} * b.key_heads;
  const auto blocks = [&](int64_t line) { return ceil_div(stored_columns(b, int(line / b.key_heads)), kKeysOfItem); };
  int64_t count = 0, most = 0;
  for (int64_t line = 0; line < lines; ++line) {
    count += blocks(line);
    most = std::max(most, blocks(line));
  }
  KeyItem* items = arena.array_of<KeyItem>(size_t(count));
  int64_t* number = arena.array_of<int64_t>(size_t(lines * most));  // {lines, most}
  int64_t n = 0;
  const auto add = [&](int64_t line, int64_t block) {
    if (block >= blocks(line)) return;
    const int batch = int(line / b.key_heads);
    const int64_t first = block * kKeysOfItem, last = std::min(first + kKeysOfItem, stored_columns(b, batch));
    int64_t above = line - 1;
    while (above >= 0 && block >= blocks(above)) --above;
    items[n] = {batch,
                int32_t(line % b.key_heads),
                {int32_t(first), int32_t(last)},
                block == 0 ? -1 : number[line * most + block - 1],
                above < 0 ? -1 : number[above * most + block]};
    number[line * most + block] = n++;
  };
  if (order == KeyOrder::kHeadsInside) {
    for (int64_t block = 0; block < most; ++block)
      for (int64_t line = 0; line < lines; ++line) add(line, block);
  } else {
    for (int64_t line = 0; line < lines; ++line)
      for (int64_t block = 0; block < most; ++block) add(line, block);
  }
  return {items, size_t(count)};
}

}  // namespace qkv
