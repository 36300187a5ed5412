#include "attention/overlap.h"

#include <algorithm>
#include <array>

#include "core/format.h"

namespace qkv::check {
namespace {

/// The memory of a tensor, as far as two numbers tell it.
struct Extent {
  std::string_view name;  // of a gradient by a parameter: the parameter's
  bool by_parameter = false;
  uintptr_t first = 0, end = 0;  // bytes; the first and the last element are always part of the tensor
  uintptr_t element = 0;
  bool dense = false;  // every element of the range is part of the tensor

  /// Whether an element of that many bytes at that place lies in the range, at least in part.
  bool holds(uintptr_t at, uintptr_t bytes) const { return at < end && at + bytes > first; }
};

Extent extent_of(std::string_view name, View<const void> v) {
  int64_t low = 0, high = 0;
  for (int a = 0; a < v.rank; ++a) (v.strides[a] < 0 ? low : high) += (v.shape[a] - 1) * v.strides[a];
  const auto element = int64_t(size_of(v.dtype));
  const auto data = reinterpret_cast<uintptr_t>(v.data);
  return {name,
          false,
          data + uintptr_t(low * element),
          data + uintptr_t((high + 1) * element),
          uintptr_t(element),
          v.size() == high - low + 1};
}

/// More elements than places, or an axis whose elements are one.
bool overlaps_itself(View<const void> v) {
  int64_t span = 1;
  for (int a = 0; a < v.rank; ++a) {
    if (v.shape[a] > 1 && v.strides[a] == 0) return true;
    span += (v.shape[a] - 1) * std::abs(v.strides[a]);
  }
  return v.size() > span;
}

bool surely_overlap(const Extent& a, const Extent& b) {
  const auto end_in = [](const Extent& dense, const Extent& other) {
    return dense.dense &&
           (dense.holds(other.first, other.element) || dense.holds(other.end - other.element, other.element));
  };
  return end_in(a, b) || end_in(b, a);
}

constexpr size_t kOutputs = 17, kGradients = 6;
template <class F> void each_output(const Outputs& o, F f) {
  const RowStatistics& s = o.rows;
  f("out", o.out), f("lse", o.lse), f("row_max", o.row_max), f("row_sum", o.row_sum);
  f("entropy", s.entropy), f("effective_keys", s.effective_keys), f("max_weight", s.max_weight),
      f("max_index", s.max_index);
  f("mean_distance", s.mean_distance), f("sink_share", s.sink_share), f("visible_keys", s.visible_keys);
  f("top_weights", s.top_weights), f("top_indices", s.top_indices);
  f("weights", o.weights), f("raw_scores", o.raw_scores), f("modified_scores", o.modified_scores),
      f("masked_scores", o.masked_scores);
}

template <class F> void each_input(const Inputs& in, F f) {
  f("query", in.query), f("key", in.key), f("value", in.value);
  f("keep_mask", in.keep_mask), f("ignore_mask", in.ignore_mask), f("bias", in.bias),
      f("alibi_slopes", in.alibi_slopes);
  f("sinks", in.sinks), f("query_documents", in.query_documents), f("key_documents", in.key_documents);
  f("key_lengths", in.key_lengths), f("query_offset", in.query_offset), f("key_start", in.key_start);
  f("cumulative_query_lengths", in.cumulative_query_lengths), f("cumulative_key_lengths", in.cumulative_key_lengths);
  f("dropout_keep", in.dropout_keep);
  for (const Named& p : in.parameters) f(p.name, p.view);
}

/// What a call writes, one tensor after the other.
class Written {
 public:
  Written(const char* function, size_t most, CallArena& arena)
      : function_(function), extents_(arena.array_of<Extent>(most)) {}

  void write(std::string_view name, View<const void> v, bool by_parameter = false) {
    if (v.size() == 0) return;
    if (overlaps_itself(v))
      option_error("{}: {}{} has shape {} but its strides put several elements in one place; give each its own",
                   function_, by_parameter ? "the gradient by " : "", name, v);
    read(name, v);
    extents_[count_] = extent_of(name, v);
    extents_[count_++].by_parameter = by_parameter;
  }
  void read(std::string_view name, View<const void> v) const {
    if (v.size() == 0) return;
    const Extent other = extent_of(name, v);
    for (const Extent& mine : std::span(extents_, count_))
      if (surely_overlap(mine, other))
        option_error(
            "{}: {}{} lies in the memory of {}, which is still needed while it is written; give it memory of its own",
            function_, mine.by_parameter ? "the gradient by " : "", mine.name, name);
  }

 private:
  const char* function_;
  Extent* extents_;
  size_t count_ = 0;
};

}  // namespace

void apart(const char* function, const Inputs& in, const Outputs& outputs, CallArena& arena) {
  Written written(function, kOutputs, arena);
  each_output(outputs, [&](std::string_view name, View<const void> v) { written.write(name, v); });
  each_input(in, [&](std::string_view name, View<const void> v) { written.read(name, v); });
}

void apart(const char* function, const Inputs& in, const Upstream& up, const Gradients& g, CallArena& arena) {
  Written written(function, kGradients + g.dparameters.size(), arena);
  for (const auto& [name, v] : {std::pair{"dquery", g.dquery},
                                {"dkey", g.dkey},
                                {"dvalue", g.dvalue},
                                {"dbias", g.dbias},
                                {"dalibi_slopes", g.dalibi_slopes},
                                {"dsinks", g.dsinks}})
    written.write(name, v);
  for (const NamedGradient& p : g.dparameters) written.write(p.name, p.view, true);
  each_input(in, [&](std::string_view name, View<const void> v) { written.read(name, v); });
  for (const auto& [name, v] : {std::pair{"out", up.out},
                                {"lse", up.lse},
                                {"dout", up.dout},
                                {"dlse", up.dlse},
                                {"row_max", up.row_max},
                                {"row_sum", up.row_sum}})
    written.read(name, v);
}

bool asks_for_anything(const Outputs& outputs) {
  bool asks = false;
  each_output(outputs, [&](std::string_view, View<const void> v) { asks |= bool(v); });
  return asks;
}

}  // namespace qkv::check
