// Stacks step by step: caches, and positions that go on behind what is in them.
#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/format.h"
#include "nn/elementwise.h"
#include "nn/parts.h"
#include "qkv/transformer.h"

namespace qkv::nn {
namespace {

/// The keys that a query sees at most, itself included, by the windows of a formula.
std::optional<int64_t> window_of(const Attention& formula) {
  std::optional<int64_t> shortest;
  for (const auto& pattern : formula.patterns()) {
    constexpr std::string_view kWord = "window:";
    const std::string& text = pattern->about().text;
    if (!text.starts_with(kWord)) continue;
    int64_t left = -1;
    std::from_chars(text.data() + kWord.size(), text.data() + text.size(), left);
    if (left >= 0) shortest = std::min(left + 1, shortest.value_or(left + 1));
  }
  return shortest;
}

View<const int32_t> lengths_of(const LayerCache& cache) {
  return std::visit([](const auto& c) { return c.lengths(); }, cache);
}

/// Rows [first, first + count) of a matrix {rows, columns}.
template <class Void> View<Void> rows_from(const View<Void>& matrix, int64_t first, int64_t count) {
  View<Void> part = matrix;
  part.data = at(matrix, first);
  part.shape[0] = count;
  return part;
}

}  // namespace

std::vector<LayerCache> TransformerStack::make_caches(const CacheOptions& c) const {
  const int64_t key_heads = options_.key_heads > 0 ? options_.key_heads : options_.heads;
  const int64_t dim = options_.width / options_.heads;
  const CacheShape shape{.dtype = c.dtype, .batch = c.batch, .key_heads = key_heads, .key_dim = dim, .value_dim = dim};
  std::vector<LayerCache> caches;
  for (const auto& layer : layers_) {
    const auto window = window_of(layer->self_attn.options().formula);
    if (window && (*window < options_.context || can_slide()))
      caches.emplace_back(SlidingCache(shape, {.window = *window, .rollback = c.rollback, .chunk = c.chunk}));
    else caches.emplace_back(KeyValueCache(shape, std::min<int64_t>(256, options_.context)));
  }
  return caches;
}

bool TransformerStack::can_slide() const {
  return options_.positions != Positions::kLearned && options_.positions != Positions::kSinusoidal &&
         std::ranges::all_of(
             layers_, [](const auto& layer) { return window_of(layer->self_attn.options().formula).has_value(); });
}

std::vector<KeyValueCache> TransformerStack::remember(Tape& tape, const Variable& memory) {
  std::vector<KeyValueCache> memories;
  for (const auto& layer : layers_) {
    MultiHeadAttention& cross = *layer->multihead_attn;
    const auto& o = cross.options();
    memories.emplace_back(CacheShape{.dtype = memory.dtype(),
                                     .batch = memory.shape(0),
                                     .key_heads = o.key_heads,
                                     .key_dim = o.head_dim,
                                     .value_dim = o.value_head_dim},
                          std::max<int64_t>(1, memory.shape(1)));
    cross.remember(tape, memory, memory, memories.back());
  }
  return memories;
}

/// x[b, l] + table[lengths[b] + l]; rows that do not exist stay as they are where the table ends.
Variable TransformerStack::add_positions(Tape& tape, const Variable& x, const StackCall& c) {
  View<const void> table;
  if (position_embedding_) table = std::as_const(position_embedding_->value).view();
  if (options_.positions == Positions::kSinusoidal) table = std::as_const(sinusoids_).view();
  if (!table) return x;
  const Variable y = tape.make(x.layout(), x.dtype());
  const auto lengths = lengths_of(c.caches[0]);
  const int64_t sizes[] = {x.shape(1), x.shape(2)};
  for (int64_t b = 0; b < x.shape(0); ++b) {
    const int64_t exist = c.rows ? c.rows(b) : x.shape(1), first = lengths(b);
    if (first + exist > table.shape[0])
      option_error("TransformerStack: entry {} would have {} tokens, the context is {}", b, first + exist,
                   table.shape[0]);
    const Layout matrix(sizes);
    const View<const void> from = x.seen_as(matrix, b * matrix.size()).value();
    const View<void> to = y.seen_as(matrix, b * matrix.size()).to_write();
    std::memcpy(to.data, from.data, size_t(matrix.size()) * size_of(to.dtype));
    if (exist > 0) add(rows_from(from, 0, exist), rows_from(table, first, exist), rows_from(to, 0, exist), tape.call());
  }
  return y;
}

/// T5's bias {B, heads, L, S} of queries behind what is in a cache; {1, heads, L, S} where all entries stand alike.
Variable TransformerStack::bias_of(Tape& tape, const Inputs& in) {
  const int64_t entries = in.query_offset.shape[0], queries = in.query.shape[2], keys = in.key.shape[2];
  const auto pairs_of = [&](int64_t b) {
    return T5Pairs{.queries = queries,
                   .keys = keys,
                   .query_offset = in.query_offset(b),
                   .key_start = in.key_start ? in.key_start(b) : 0};
  };
  const T5Buckets buckets{.sides = T5Buckets::Sides::kPast};
  bool are_alike = true;
  for (int64_t b = 1; b < entries; ++b)
    are_alike = are_alike && pairs_of(b).query_offset == pairs_of(0).query_offset &&
                pairs_of(b).key_start == pairs_of(0).key_start;
  if (are_alike) return t5_bias(tape, buckets, pairs_of(0), *relative_table_);
  const int64_t sizes[] = {entries, options_.heads, queries, keys};
  const Variable all = tape.make(Layout(sizes), relative_table_->value.dtype());
  for (int64_t b = 0; b < entries; ++b) {
    const View<const void> one = t5_bias(tape, buckets, pairs_of(b), *relative_table_).value();
    std::memcpy(at(all.to_write(), b), one.data, size_t(one.size()) * size_of(one.dtype));
  }
  return all;
}

}  // namespace qkv::nn
