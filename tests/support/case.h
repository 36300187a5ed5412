// One struct that says what a test runs: sizes, types, strides, options, seed. Everything that is random comes from it.
#pragma once
#include <ostream>
#include <string_view>
#include <vector>

#include "qkv/attention.h"
#include "tests/support/tensor.h"

namespace qkv::testing {

struct Case {
  DType dtype = DType::kFloat32;
  int batch = 1, key_heads = 1, group = 1;  // query heads = key heads * group
  int queries = 1, keys = 1, head_dim = 1, value_dim = 1;
  Placement placement = Placement::kContiguous;
  bool packed = false, tiled = false;

  bool causal = false, window = false;
  int left = -1, right = -1;
  Align align = Align::kTopLeft;
  bool key_lengths = false, query_offset = false, key_start = false;
  bool documents = false, keep_mask = false, ignore_mask = false;

  double scale = 0;  // 0: not set
  double softcap = 0;
  bool softcaps = false, scales = false;
  bool alibi = false, bias = false, bias_hides = false;
  bool sinks = false, zero_key = false;
  double dropout = 0;
  bool dropout_keep = false;  // a tensor says what is kept, else a seed
  int mask_axes = 15;         // bit n: axis n of masks and bias has its full size, else 1
  double magnitude = 1;       // of queries and keys
  unsigned seed = 1;

  int query_heads() const { return key_heads * group; }

  Attention attention() const {
    Attention a;
    if (causal) a.visible(Causal{});
    if (window) a.visible(Window{left, right});
    if (documents) a.visible(Documents{});
    if (keep_mask) a.visible(KeepMask{});
    if (ignore_mask) a.visible(IgnoreMask{});
    if (softcap != 0) a.score(SoftCap{softcap});
    if (softcaps) a.score(SoftCaps{});
    if (scales) a.score(Scales{});
    if (alibi) a.score(Alibi{});
    if (bias) a.score(Bias{});
    if (scale != 0) a.scale(scale);
    if (sinks) a.weights(SinkSoftmax{});
    if (tiled) a.heads(HeadMapping::kTiled);
    return a.zero_key(zero_key).dropout(dropout).align(align);
  }
};

namespace detail {
template <class T> void print_value(std::ostream& s, const T& x) { s << x; }
inline void print_value(std::ostream& s, bool x) { s << (x ? "true" : "false"); }
inline void print_value(std::ostream& s, DType x) { s << "DType::k" << qkv::name(x); }
inline void print_value(std::ostream& s, Placement x) { s << "Placement{" << int(x) << "} (" << name(x) << ")"; }
inline void print_value(std::ostream& s, Align x) {
  s << (x == Align::kTopLeft ? "top_left" : x == Align::kUnset ? "unset" : "bottom_right");
}
}  // namespace detail

/// Only what differs from Case{}, as designated initialisers.
inline std::ostream& operator<<(std::ostream& s, const Case& c) {
  const Case plain;
  auto field = [&](const char* label, const auto& value, const auto& usual) {
    if (value == usual) return;
    s << " ." << label << " = ";
    detail::print_value(s, value);
    s << ",";
  };
#define QKV_FIELD(x) field(#x, c.x, plain.x)
  s << "Case{";
  QKV_FIELD(dtype), QKV_FIELD(batch), QKV_FIELD(key_heads), QKV_FIELD(group), QKV_FIELD(queries), QKV_FIELD(keys);
  QKV_FIELD(head_dim), QKV_FIELD(value_dim), QKV_FIELD(placement), QKV_FIELD(packed), QKV_FIELD(tiled),
      QKV_FIELD(causal);
  QKV_FIELD(window), QKV_FIELD(left), QKV_FIELD(right), QKV_FIELD(align), QKV_FIELD(key_lengths),
      QKV_FIELD(query_offset);
  QKV_FIELD(key_start), QKV_FIELD(documents), QKV_FIELD(keep_mask), QKV_FIELD(ignore_mask), QKV_FIELD(mask_axes);
  QKV_FIELD(scale), QKV_FIELD(softcap), QKV_FIELD(softcaps), QKV_FIELD(scales), QKV_FIELD(alibi), QKV_FIELD(bias),
      QKV_FIELD(bias_hides), QKV_FIELD(sinks);
  QKV_FIELD(zero_key), QKV_FIELD(dropout), QKV_FIELD(dropout_keep), QKV_FIELD(magnitude), QKV_FIELD(seed);
#undef QKV_FIELD
  return s << " }";
}

/// The tensors of a case. Copy it, change a tensor, run both. `parameters` are tensors for policies of one's own.
class Example {
 public:
  struct Parameters {
    std::string_view name;
    Tensor tensor;
  };
  Case shape;
  Attention attention;
  Tensor query, key, value;
  Tensor keep_mask, ignore_mask, bias, alibi_slopes, sinks, query_documents, key_documents, dropout_keep;
  Tensor key_lengths, query_offset, key_start, cumulative_query_lengths, cumulative_key_lengths;
  std::vector<Parameters> parameters;

  explicit Example(const Case& c) : shape(c), attention(c.attention()), random_(c.seed) {
    if (c.packed) {
      cumulative_query_lengths = ragged(c.queries);
      cumulative_key_lengths = ragged(c.keys);
    }
    query = rows(cumulative_query_lengths, c.query_heads(), c.queries, c.head_dim).normal(c.seed * 10 + 1, c.magnitude);
    key = rows(cumulative_key_lengths, c.key_heads, c.keys, c.head_dim).normal(c.seed * 10 + 2, c.magnitude);
    value = rows(cumulative_key_lengths, c.key_heads, c.keys, c.value_dim).normal(c.seed * 10 + 3);
    make_masks();
    make_numbers();
  }

  Inputs inputs() const {
    Inputs in{.query = query.view(),
              .key = key.view(),
              .value = value.view(),
              .keep_mask = keep_mask.view(),
              .ignore_mask = ignore_mask.view(),
              .bias = bias.view(),
              .alibi_slopes = alibi_slopes.view(),
              .sinks = sinks.view(),
              .query_documents = query_documents.view(),
              .key_documents = key_documents.view(),
              .key_lengths = key_lengths.as<int32_t>(),
              .query_offset = query_offset.as<int32_t>(),
              .key_start = key_start.as<int32_t>(),
              .dropout_keep = dropout_keep.view(),
              .cumulative_query_lengths = cumulative_query_lengths.as<int32_t>(),
              .cumulative_key_lengths = cumulative_key_lengths.as<int32_t>()};
    if (shape.dropout > 0 && !dropout_keep) in.dropout_seed = 0x9E3779B97F4A7C15u * shape.seed;
    for (const auto& p : parameters) in.parameters.push_back({p.name, p.tensor.view()});
    return in;
  }

  /// A poisoned tensor like `out`: {B, Hq, L, n}, packed {T, Hq, n}.
  Tensor wide(DType type, int64_t n, Placement placement = Placement::kContiguous) const {
    const Extents& q = query.layout().shape;
    if (shape.packed) return Tensor(type, {q[0], q[1], n}, placement);
    return Tensor(type, {q[0], q[1], q[2], n}, placement);
  }
  /// A poisoned tensor like `lse`: {B, Hq, L}, packed {T, Hq}.
  Tensor narrow(DType type) const {
    const Extents& q = query.layout().shape;
    return shape.packed ? Tensor(type, {q[0], q[1]}) : Tensor(type, {q[0], q[1], q[2]});
  }
  Tensor out(Placement placement = Placement::kContiguous) const {
    return wide(shape.dtype, shape.value_dim, placement);
  }
  DType lse_type() const { return shape.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }
  Tensor lse() const { return narrow(lse_type()); }
  /// A poisoned matrix {B, Hq, L, S}, of packed batches with the longest L and S.
  Tensor matrix() const { return Tensor(lse_type(), {shape.batch, shape.query_heads(), shape.queries, shape.keys}); }

 private:
  int uniform(int first, int last) { return std::uniform_int_distribution<int>(first, last)(random_); }

  /// Cumulative lengths of sequences, the first of them the longest.
  Tensor ragged(int longest) {
    std::vector<double> ends{0};
    for (int b = 0; b < shape.batch; ++b) ends.push_back(ends.back() + (b == 0 ? longest : uniform(0, longest)));
    return int32s(ends);
  }
  Tensor rows(const Tensor& cumulative, int64_t heads, int64_t length, int64_t width) const {
    if (shape.packed) return Tensor(shape.dtype, {int64_t(cumulative.get(shape.batch)), heads, width}, shape.placement);
    return Tensor(shape.dtype, {shape.batch, heads, length, width}, shape.placement);
  }
  std::vector<int64_t> matrix_shape() const {
    std::vector<int64_t> full{shape.batch, shape.query_heads(), shape.queries, shape.keys};
    for (size_t axis = 0; axis < 4; ++axis)
      if (!(shape.mask_axes >> axis & 1)) full[axis] = std::min<int64_t>(full[axis], 1);
    return full;
  }
  void make_masks() {
    const Case& c = shape;
    if (c.keep_mask) keep_mask = Tensor(DType::kBool, matrix_shape(), c.placement).coins(c.seed * 10 + 4, 0.7);
    if (c.ignore_mask) ignore_mask = Tensor(DType::kBool, matrix_shape(), c.placement).coins(c.seed * 10 + 5, 0.2);
    if (c.dropout > 0 && c.dropout_keep)
      dropout_keep = Tensor(DType::kBool, matrix_shape(), c.placement).coins(c.seed * 10 + 11, 1 - c.dropout);
    if (c.documents) {
      auto id = [&](int64_t, int64_t i, int64_t, int64_t) { return c.seed % 2 ? i / 5 % 4 : uniform(0, 2); };
      query_documents = Tensor(DType::kInt32, {c.batch, c.queries}).fill(id);
      key_documents = Tensor(DType::kInt32, {c.seed % 3 ? 1 : c.batch, c.keys}).fill(id);
    }
  }
  void make_numbers() {
    const Case& c = shape;
    const DType kinds[] = {c.dtype, DType::kFloat32, DType::kFloat64};
    if (c.bias) bias = Tensor(kinds[c.seed % 3], matrix_shape(), c.placement).normal(c.seed * 10 + 6);
    if (c.bias && c.bias_hides) {
      bias.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
        if (uniform(0, 3) == 0) bias.set(-std::numeric_limits<double>::infinity(), b, h, i, j);
      });
    }
    if (c.alibi) {
      alibi_slopes = Tensor(kinds[1 + c.seed % 2], {c.query_heads()}).fill([&](int64_t h, int64_t, int64_t, int64_t) {
        return 0.3 / double(h + 1);
      });
    }
    const auto of_heads = [&](std::string_view name, double first, double step) {
      parameters.push_back(
          {name, Tensor(kinds[1 + c.seed % 2], {c.query_heads()}).fill([=](int64_t h, int64_t, int64_t, int64_t) {
             return first + step * double(h);
           })});
    };
    if (c.softcaps) of_heads("softcaps", 0.8, 0.7);
    if (c.scales) of_heads("scales", 1.3, -0.4);
    if (c.sinks) sinks = Tensor(kinds[1 + c.seed / 2 % 2], {c.query_heads()}).normal(c.seed * 10 + 7);
    auto numbers = [&](int64_t n, int first, int last) {
      return Tensor(DType::kInt32, {n}).fill([&](int64_t, int64_t, int64_t, int64_t) { return uniform(first, last); });
    };
    if (c.key_lengths && !c.packed) key_lengths = numbers(c.batch, 0, c.keys);
    if (c.query_offset) query_offset = numbers(c.seed % 2 ? 1 : c.batch, -3, c.keys);
    if (c.key_start) key_start = numbers(c.seed % 2 ? c.batch : 1, 0, 20);
  }

  std::mt19937_64 random_;
};

/// What forward() gave.
struct Result {
  Tensor out, lse;
};
/// Runs forward() into poisoned tensors.
inline Result run(const Example& e, const Call& call = {}, Placement placement = Placement::kContiguous) {
  Result r{e.out(placement), e.lse()};
  forward(e.attention, e.inputs(), {.out = r.out.view(), .lse = r.lse.view()}, call);
  return r;
}

}  // namespace qkv::testing
