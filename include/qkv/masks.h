// Masks as arrays, and conversions between the conventions of others and ours.
#pragma once
#include "qkv/attention.h"

namespace qkv {

/// keep = !ignore. "True is hidden" (nn.MultiheadAttention, key_padding_mask) to "true may attend". Same shapes.
QKV_EXPORT void keep_from_ignore(View<const bool> ignore, View<bool> keep);

/// additive = keep ? 0 : -inf, of any floating type. Same shapes.
QKV_EXPORT void additive_from_keep(View<const bool> keep, View<void> additive);

/// nn.MultiheadAttention's two masks as one. attention_ignore {N * heads, L, S} (index n * heads + h) or {L, S};
/// key_padding_ignore {N, S}; either may be absent. keep {N, heads, L, S} is true where neither ignores: padding hides
/// columns, never rows. Throws ShapeError.
QKV_EXPORT void merge_ignore_masks(View<const bool> attention_ignore, View<const bool> key_padding_ignore,
                                   View<bool> keep);

/// What every query sees: keep {B, Hq, L, S}. Of packed batches L and S are the longest. Checks like forward().
QKV_EXPORT void keep_mask_of(const Attention&, const Inputs&, View<bool> keep, const Call& = {});

/// Why a pair is hidden: 0 where it is visible, 1 where the column does not exist (key length), else 2 + n, where n counts
/// attention.patterns() and then those of attention.scores() that hide; of several the first. rule {B, Hq, L, S}.
QKV_EXPORT void hiding_rule_of(const Attention&, const Inputs&, View<uint8_t> rule, const Call& = {});

}  // namespace qkv
