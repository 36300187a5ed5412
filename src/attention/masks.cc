// Masks of other conventions as ours. What an attention sees is in mask_of.cc.
#include "qkv/masks.h"

#include <limits>

#include "attention/check.h"
#include "core/elements.h"
#include "core/format.h"

namespace qkv {
namespace {

void check_mask(const char* function, const char* name, View<const void> mask) {
  if (!mask) shape_error("{}: {} is missing; pass a view", function, name);
  check::data(function, name, mask);
}

void check_same_shape(const char* function, const char* name, const Layout& got, const char* other,
                      const Layout& expected) {
  if (got.rank != expected.rank || got.shape != expected.shape)
    shape_error("{}: {} has shape {}, expected {}, that of {}", function, name, got, expected, other);
}

/// Every index of a shape, the last axis fastest.
template <class F> void for_each_index(const Layout& shape, F&& f) {
  if (shape.rank == 0) return;
  Extents i{};
  for (i[0] = 0; i[0] < shape.shape[0]; ++i[0])
    for (i[1] = 0; i[1] < shape.shape[1]; ++i[1])
      for (i[2] = 0; i[2] < shape.shape[2]; ++i[2])
        for (i[3] = 0; i[3] < shape.shape[3]; ++i[3]) f(i[0], i[1], i[2], i[3]);
}

/// A mask from elsewhere may hold any byte; reading one as bool would be undefined.
template <class... I> bool holds(View<const bool> mask, I... index) {
  return reinterpret_cast<const uint8_t*>(mask.data)[mask.offset(index...)] != 0;
}

constexpr const char* kMerge = "merge_ignore_masks";

void check_attention_ignore(View<const bool> mask, const Layout& keep) {
  if (!mask) return;
  const int64_t entries = keep.shape[0] * keep.shape[1], queries = keep.shape[2], keys = keep.shape[3];
  const bool per_head = mask.rank == 3 && mask.shape[0] == entries && mask.shape[1] == queries && mask.shape[2] == keys;
  const bool same_for_all = mask.rank == 2 && mask.shape[0] == queries && mask.shape[1] == keys;
  if (!per_head && !same_for_all)
    shape_error(
        "{}: attention_ignore has shape {}, expected {{{}, {}, {}}} (index n * heads + h) or {{{}, {}}} for keep of shape {}",
        kMerge, mask, entries, queries, keys, queries, keys, keep);
  check::data(kMerge, "attention_ignore", mask);
}

void check_key_padding(View<const bool> mask, const Layout& keep) {
  if (!mask) return;
  if (mask.rank != 2 || mask.shape[0] != keep.shape[0] || mask.shape[1] != keep.shape[3])
    shape_error("{}: key_padding_ignore has shape {}, expected {{{}, {}}} for keep of shape {}", kMerge, mask,
                keep.shape[0], keep.shape[3], keep);
  check::data(kMerge, "key_padding_ignore", mask);
}

}  // namespace

void keep_from_ignore(View<const bool> ignore, View<bool> keep) {
  check_mask("keep_from_ignore", "ignore", ignore);
  check_same_shape("keep_from_ignore", "keep", keep, "ignore", ignore);
  check_mask("keep_from_ignore", "keep", View<const bool>(keep));
  for_each_index(ignore, [&](auto... i) { keep(i...) = !holds(ignore, i...); });
}

void additive_from_keep(View<const bool> keep, View<void> additive) {
  check_mask("additive_from_keep", "keep", keep);
  check_same_shape("additive_from_keep", "additive", additive, "keep", keep);
  if (!is_floating(additive.dtype))
    dtype_error(
        "additive_from_keep: additive has type {}, expected float32, float64, float16 or bfloat16; it is added to scores",
        additive.dtype);
  check_mask("additive_from_keep", "additive", additive);
  for_each_index(keep, [&](auto... i) {
    const float value = holds(keep, i...) ? 0 : -std::numeric_limits<float>::infinity();
    store(additive, additive.offset(i...), 1, 1, &value);
  });
}

void merge_ignore_masks(View<const bool> attention_ignore, View<const bool> key_padding_ignore, View<bool> keep) {
  if (keep.rank != 4) shape_error("{}: keep has shape {}, expected {{N, heads, L, S}}", kMerge, keep);
  check_attention_ignore(attention_ignore, keep);
  check_key_padding(key_padding_ignore, keep);
  check_mask(kMerge, "keep", View<const bool>(keep));
  for_each_index(keep, [&](int64_t n, int64_t h, int64_t i, int64_t j) {
    bool ignored = key_padding_ignore && holds(key_padding_ignore, n, j);
    if (attention_ignore.rank == 2) ignored |= holds(attention_ignore, i, j);
    if (attention_ignore.rank == 3) ignored |= holds(attention_ignore, n * keep.shape[1] + h, i, j);
    keep(n, h, i, j) = !ignored;
  });
}

}  // namespace qkv
