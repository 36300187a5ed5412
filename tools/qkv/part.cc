#include "qkv/part.h"

#include <algorithm>

#include "qkv/views.h"

namespace qkv::cli {

namespace {

View<const void> slice(View<const void> x, size_t axis, int64_t first, int64_t count) {
  x.data = static_cast<const char*>(x.data) + first * x.strides[axis] * static_cast<int64_t>(size_of(x.dtype));
  x.shape[axis] = count;
  return x;
}

/// The same, where an axis of size 1 stands for any size and stays.
View<const void> slice_shared(View<const void> x, size_t axis, int64_t first, int64_t count) {
  return !x || x.shape[axis] == 1 ? x : slice(x, axis, first, count);
}

View<const int32_t> entry_of(View<const int32_t> numbers, int64_t batch) {
  return numbers ? View<const int32_t>(&numbers(numbers.shape[0] == 1 ? 0 : batch), {1}) : numbers;
}

/// Of a packed tensor the sequence that begins at `start`, as {1, H, rows, D}.
View<const void> sequence(View<const void> x, int64_t start, int64_t rows) {
  return with_axes(slice(x, 0, start, rows), {-1, 1, 0, 2});
}

class Cutter {
 public:
  Cutter(const Problem& whole, const Part& part) : whole_(whole), from_(whole.inputs), batch_(part.batch) {
    const int64_t all_queries = queries_of(whole, batch_);
    columns_ = columns_of(whole, batch_);
    first_query_ = part.first_query;
    queries_ = part.queries < 0 ? all_queries - first_query_ : part.queries;
    first_head_ = std::max<int64_t>(0, part.head);
    heads_ = part.head < 0 ? whole.sizes.heads : 1;
  }

  Problem cut() {
    part_.attention = whole_.attention;
    tensors();
    tables();
    positions();
    const Inputs& in = part_.inputs;
    part_.sizes = {1, heads_, in.key.shape[1], queries_, columns_, in.query.shape[3], in.value.shape[3]};
    return std::move(part_);
  }

 private:
  void tensors() {
    Inputs& in = part_.inputs;
    const auto entry = [&](View<const void> x, View<const int32_t> starts, int64_t rows) {
      return starts ? sequence(x, starts(batch_), rows) : slice(x, 0, batch_, 1);
    };
    in.query = entry(from_.query, from_.cumulative_query_lengths, queries_of(whole_, batch_));
    in.key = entry(from_.key, from_.cumulative_key_lengths, columns_);
    in.value = entry(from_.value, from_.cumulative_key_lengths, columns_);
    in.query = slice(slice(in.query, 1, first_head_, heads_), 2, first_query_, queries_);
    if (whole_.dout) loss();
    if (heads_ == whole_.sizes.heads) return;
    const int64_t g = key_head_of(whole_, first_head_);
    in.key = slice(in.key, 1, g, 1);
    in.value = slice(in.value, 1, g, 1);
  }

  void loss() {
    const View<const int32_t> starts = from_.cumulative_query_lengths;
    const View<const void> out =
        starts ? sequence(whole_.dout, starts(batch_), queries_of(whole_, batch_)) : slice(whole_.dout, 0, batch_, 1);
    part_.dout = slice(slice(out, 1, first_head_, heads_), 2, first_query_, queries_);
    if (!whole_.dlse) return;
    const View<const void> lse =
        starts ? with_axes(slice(whole_.dlse, 0, starts(batch_), queries_of(whole_, batch_)), {-1, 1, 0})
               : slice(whole_.dlse, 0, batch_, 1);
    part_.dlse = slice(slice(lse, 1, first_head_, heads_), 2, first_query_, queries_);
  }

  /// {B, H, L, S}, each axis 1 or full.
  View<const void> matrix(View<const void> x) const {
    x = slice_shared(slice_shared(x, 0, batch_, 1), 1, first_head_, heads_);
    return slice_shared(slice_shared(x, 2, first_query_, queries_), 3, 0, columns_);
  }

  /// What there is one number a head of.
  View<const void> of_heads(std::string_view name, View<const void> x) const {
    return name == "softcaps" || name == "scales" ? slice(x, 0, first_head_, heads_) : x;
  }

  void tables() {
    Inputs& in = part_.inputs;
    in.keep_mask = matrix(from_.keep_mask);
    in.ignore_mask = matrix(from_.ignore_mask);
    in.bias = matrix(from_.bias);
    if (from_.sinks) in.sinks = slice(from_.sinks, 0, first_head_, heads_);
    if (from_.alibi_slopes) in.alibi_slopes = slice(from_.alibi_slopes, 0, first_head_, heads_);
    for (const Named& p : from_.parameters) in.parameters.push_back({p.name, of_heads(p.name, p.view)});
    if (from_.query_documents)
      in.query_documents = slice(slice_shared(from_.query_documents, 0, batch_, 1), 1, first_query_, queries_);
    if (from_.key_documents) in.key_documents = slice(slice_shared(from_.key_documents, 0, batch_, 1), 1, 0, columns_);
  }

  void positions() {
    Inputs& in = part_.inputs;
    in.key_lengths = entry_of(from_.key_lengths, batch_);
    in.key_start = entry_of(from_.key_start, batch_);
    Array offset(DType::kInt32, {1});
    *static_cast<int32_t*>(offset.data()) = static_cast<int32_t>(offset_of(whole_, batch_) + first_query_);
    part_.memory.push_back(std::move(offset));
    in.query_offset = std::as_const(part_.memory.back()).view().as<const int32_t>();
  }

  const Problem& whole_;
  const Inputs& from_;
  int64_t batch_, columns_ = 0, first_query_ = 0, queries_ = 0, first_head_ = 0, heads_ = 0;
  Problem part_;
};

}  // namespace

int64_t queries_of(const Problem& p, int64_t batch) {
  const View<const int32_t> c = p.inputs.cumulative_query_lengths;
  return p.packed ? int64_t{c(batch + 1)} - c(batch) : p.sizes.queries;
}

int64_t columns_of(const Problem& p, int64_t batch) {
  const View<const int32_t> c = p.inputs.cumulative_key_lengths;
  return p.packed ? int64_t{c(batch + 1)} - c(batch) : p.sizes.keys;
}

Problem part_of(const Problem& whole, const Part& part) {
  forward(whole.attention, whole.inputs, {});  // the checks alone
  return Cutter(whole, part).cut();
}

}  // namespace qkv::cli
