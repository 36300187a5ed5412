// How the backward pass is cut: blocks of keys of one key head. By shapes only.
#pragma once
#include <cstdint>
#include <span>

#include "attention/bind.h"

namespace qkv {

struct KeyItem {
  int32_t batch, key_head;
  KeyRange columns;     ///< those that are stored; from Entry::keys on they do not exist
  int64_t keys_before;  ///< the item with the keys before these, of the same head; -1: these are the first
  int64_t
      heads_before;  ///< the item of the head before with the same keys, of the batch entry before where this head is its
                     ///< first; -1: there is none
};

/// Which items come first; who adds to the same sums is to be far apart.
enum class KeyOrder : uint8_t { kHeadsInside, kKeysInside };

/// Most keys of an item. What it holds of them, {4, head_dim, kKeysOfItem} numbers, fits a cache of the second level.
inline constexpr int kKeysOfItem = 192;

std::span<const KeyItem> plan_keys(const Bound&, KeyOrder, CallArena&);

}  // namespace qkv
