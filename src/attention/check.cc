#include "attention/check.h"

#include <algorithm>
#include <array>

#include "core/format.h"
#include "qkv/dropout.h"

namespace qkv::check {
namespace {

constexpr int64_t kMostPositions = int64_t{1} << 30;  // so that differences of positions fit 32 bits

/// The tensors that built-in policies name.
struct BuiltIn {
  std::string_view name;
  View<const void> Inputs::*view;
};
constexpr std::array<BuiltIn, 7> kBuiltIn{{{"keep_mask", &Inputs::keep_mask},
                                           {"ignore_mask", &Inputs::ignore_mask},
                                           {"bias", &Inputs::bias},
                                           {"alibi_slopes", &Inputs::alibi_slopes},
                                           {"sinks", &Inputs::sinks},
                                           {"query_documents", &Inputs::query_documents},
                                           {"key_documents", &Inputs::key_documents}}};

const char* conversion(std::string_view name, DType type) {
  if (name == "ignore_mask") return "if 1 means hidden, pass ignore != 0 as bool";
  if (is_floating(type))
    return "if it is added to scores, pass it as `bias`; if 1 means may attend, pass mask != 0 as bool";
  return "if 1 means may attend, pass mask != 0 as bool";
}

void mask(const char* function, const char* name, View<const void> m, const Bound& b) {
  if (!m) return;
  data(function, name, m);
  if (m.dtype != DType::kBool)
    dtype_error("{}: {} has type {}, expected bool: booleans select, floats add, integers are refused; {}", function,
                name, m.dtype, conversion(name, m.dtype));
  const std::array<int64_t, 4> full{b.batch(), b.query_heads, b.longest_query, b.longest_key};
  bool fits = m.rank == 4;
  for (int a = 0; a < 4 && fits; ++a) fits = m.shape[a] == 1 || m.shape[a] == full[a];
  if (!fits)
    shape_error(
        "{}: {} has shape {}, expected {{{}, {}, {}, {}}} with each axis full or 1; insert axes of size 1 where it is the "
        "same for all",
        function, name, m, full[0], full[1], full[2], full[3]);
}

void bias(const char* function, View<const void> m, const Bound& b) {
  if (!m) return;
  data(function, "bias", m);
  const bool wide = m.dtype == DType::kFloat32 || m.dtype == DType::kFloat64;
  const bool narrow_query = b.query.type == DType::kFloat16 || b.query.type == DType::kBFloat16;
  const auto expected = [&] {
    return narrow_query ? fmt::format("{}, float32 or float64", b.query.type) : "float32 or float64";
  };
  if (!is_floating(m.dtype))
    dtype_error(
        "{}: bias has type {}, expected {}: booleans select, floats add, integers are refused; convert with "
        "bias.astype(float32), or pass a mask as `keep_mask` (mask != 0)",
        function, m.dtype, expected());
  if (!wide && m.dtype != b.query.type)
    dtype_error("{}: bias has type {}, expected {}; convert it", function, m.dtype, expected());
  const std::array<int64_t, 4> full{b.batch(), b.query_heads, b.longest_query, b.longest_key};
  bool fits = m.rank == 4;
  for (int a = 0; a < 4 && fits; ++a) fits = m.shape[a] == 1 || m.shape[a] == full[a];
  if (!fits)
    shape_error(
        "{}: bias has shape {}, expected {{{}, {}, {}, {}}} with each axis full or 1; insert axes of size 1 where it is the "
        "same for all",
        function, m, full[0], full[1], full[2], full[3]);
}

void per_head(const char* function, const char* name, View<const void> v, const Bound& b) {
  if (!v) return;
  data(function, name, v);
  if (v.dtype != DType::kFloat32 && v.dtype != DType::kFloat64)
    dtype_error("{}: {} has type {}, expected float32 or float64; convert with {}.astype(float32)", function, name,
                v.dtype, name);
  if (v.rank != 1 || v.shape[0] != b.query_heads)
    shape_error("{}: {} has shape {}, expected one number a query head: {{{}}}; heads are numbered as in query",
                function, name, v, b.query_heads);
}

void documents(const char* function, const char* name, View<const void> v, const Bound& b, int64_t length) {
  if (!v) return;
  data(function, name, v);
  if (v.dtype != DType::kInt32)
    dtype_error("{}: {} has type {}, expected int32; convert with {}.astype(int32)", function, name, v.dtype, name);
  if (v.rank != 2 || (v.shape[0] != 1 && v.shape[0] != b.batch()) || v.shape[1] != length)
    shape_error("{}: {} has shape {}, expected {{{}, {}}}{}; one number a token", function, name, v, b.batch(), length,
                b.batch() == 1 ? "" : ", or 1 in front where all entries have the same");
}

/// {B + 1} from 0 to `total`, not decreasing.
void cumulative(const char* function, const char* name, View<const int32_t> c, int64_t total, const char* of) {
  if (c.rank != 1 || c.shape[0] < 1)
    shape_error("{}: {} has shape {}, expected {{B + 1}}: the first row of every sequence and the total", function,
                name, c);
  data(function, name, c);
  const int64_t last = c.shape[0] - 1;
  if (c(0) != 0) option_error("{}: {} begins with {}, expected 0; put a 0 before the sums", function, name, c(0));
  for (int64_t i = 0; i < last; ++i)
    if (c(i + 1) < c(i))
      option_error(
          "{}: {} falls from {} to {} at index {}, expected numbers that do not decrease; pass sums of the lengths, not the lengths",
          function, name, c(i), c(i + 1), i + 1);
  if (c(last) != total)
    option_error("{}: {} ends with {}, expected {}, the number of rows of {}; pass the sums of all lengths", function,
                 name, c(last), total, of);
}

void packed_lengths(const char* function, const Inputs& in) {
  cumulative(function, "cumulative_query_lengths", in.cumulative_query_lengths, in.query.shape[0], "query");
  cumulative(function, "cumulative_key_lengths", in.cumulative_key_lengths, in.key.shape[0], "key");
  if (in.cumulative_query_lengths.shape[0] != in.cumulative_key_lengths.shape[0])
    shape_error(
        "{}: cumulative_query_lengths has {} numbers but cumulative_key_lengths {}; both have one a sequence and one more",
        function, in.cumulative_query_lengths.shape[0], in.cumulative_key_lengths.shape[0]);
  if (in.key_lengths)
    option_error("{}: key_lengths is given beside cumulative_key_lengths; packed sequences have their lengths already",
                 function);
}

/// A number a batch entry, or one for all.
void per_entry(const char* function, const char* name, View<const int32_t> v, int64_t batch, bool one_for_all) {
  if (!v) return;
  data(function, name, v);
  if (v.rank != 1 || (v.shape[0] != batch && !(one_for_all && v.shape[0] == 1)))
    shape_error("{}: {} has shape {}, expected {{{}}}{}; one number a batch entry", function, name, v, batch,
                one_for_all ? " or {1}" : "");
}

int64_t entry_value(View<const int32_t> v, int64_t b) { return v(v.shape[0] == 1 ? 0 : b); }

bool positions_matter(const Attention& a) {
  const auto reads = [](const auto& policy) { return policy->about().reads_positions; };
  return std::any_of(a.patterns().begin(), a.patterns().end(), reads) ||
         std::any_of(a.scores().begin(), a.scores().end(), reads);
}

}  // namespace

void data(const char* function, const char* name, View<const void> v) {
  for (int a = 0; a < v.rank; ++a)
    if (v.shape[a] < 0)
      shape_error("{}: {} has shape {}, expected sizes of 0 and more; look for a subtraction that went below 0",
                  function, name, v);
  if (v.size() == 0) return;
  if (!v.data)
    option_error("{}: {} has shape {} but its data is null; pass a pointer, or an empty view to leave it out", function,
                 name, v);
  if (reinterpret_cast<uintptr_t>(v.data) % size_of(v.dtype) != 0)
    option_error("{}: {} lies at an address that is not a multiple of {}, the size of {}; copy it", function, name,
                 size_of(v.dtype), v.dtype);
}

View<const void> shapes(const char* function, const Inputs& in, Values values, Bound& b) {
  b.packed = in.cumulative_query_lengths || in.cumulative_key_lengths;
  if (b.packed && (!in.cumulative_query_lengths || !in.cumulative_key_lengths))
    option_error("{}: a packed batch needs cumulative_query_lengths and cumulative_key_lengths; only {} is given",
                 function, in.cumulative_query_lengths ? "the first" : "the second");
  const int rank = b.packed ? 3 : 4, rows = b.packed ? 0 : 2, heads = 1, size = rank - 1;
  const auto operand = [&](const char* name, View<const void> v) {
    if (!v) option_error("{}: {} is missing; pass a view", function, name);
    if (!is_floating(v.dtype))
      dtype_error("{}: {} has type {}, expected float32, float64, float16 or bfloat16; convert with {}.astype(float32)",
                  function, name, v.dtype, name);
    if (b.packed && v.rank != 3)
      shape_error("{}: {} has shape {}, expected {{total, heads, size}}, since cumulative lengths are given", function,
                  name, v);
    if (!b.packed && v.rank != 4)
      shape_error(
          "{}: {} has shape {}, expected {{batch, heads, length, size}}; insert axes of size 1, or give cumulative lengths "
          "for a packed batch",
          function, name, v);
    data(function, name, v);
    return v;
  };
  const View<const void> q = operand("query", in.query), k = operand("key", in.key);
  View<const void> v = in.value;
  if (!v && values == Values::kOptional) v = k, v.shape[size] = 0;
  operand("value", v);
  for (const auto& [name, other] : {std::pair{"key", k}, std::pair{"value", v}})
    if (other.dtype != q.dtype)
      dtype_error("{}: query has type {} but {} has type {}; convert one of them", function, q.dtype, name,
                  other.dtype);
  if (!b.packed && (k.shape[0] != q.shape[0] || v.shape[0] != q.shape[0]))
    shape_error(
        "{}: batch sizes differ: query is {}, key is {}, value is {}; expand with a stride of 0 where they are the same for all",
        function, q, k, v);
  if (v.shape[heads] != k.shape[heads])
    shape_error("{}: value has {} heads but key has {} (value is {}, key is {}); they come in pairs", function,
                v.shape[heads], k.shape[heads], v, k);
  if (v.shape[rows] != k.shape[rows])
    shape_error("{}: value has {} rows but key has {} (value is {}, key is {}); they come in pairs", function,
                v.shape[rows], k.shape[rows], v, k);
  if (k.shape[size] != q.shape[size])
    shape_error(
        "{}: key has head size {} but query has {} (key is {}, query is {}); they are multiplied, so they agree",
        function, k.shape[size], q.shape[size], k, q);
  if (q.shape[heads] > 0 && (k.shape[heads] == 0 || q.shape[heads] % k.shape[heads] != 0))
    shape_error(
        "{}: key has {} heads but query has {} (key is {}, query is {}); query heads must be a multiple of key heads",
        function, k.shape[heads], q.shape[heads], k, q);
  for (int64_t n : {q.shape[rows], k.shape[rows], q.shape[heads], q.shape[size], v.shape[size], q.shape[0]})
    if (n > kMostPositions)
      shape_error(
          "{}: an axis has size {}, expected at most {} (query is {}, key is {}); cut queries into calls, keys into parts for merge_partials()",
          function, n, kMostPositions, q, k);
  if (b.packed) packed_lengths(function, in);
  b.query_heads = int(q.shape[heads]);
  b.key_heads = int(k.shape[heads]);
  b.head_dim = int(q.shape[size]);
  b.value_dim = int(v.shape[size]);
  return v;
}

std::span<const Entry> entries(const char* function, const Attention& a, const Inputs& in, const Bound& b,
                               CallArena& arena) {
  const int64_t n = b.packed ? in.cumulative_query_lengths.shape[0] - 1 : in.query.shape[0];
  per_entry(function, "key_lengths", in.key_lengths, n, false);
  per_entry(function, "query_offset", in.query_offset, n, true);
  per_entry(function, "key_start", in.key_start, n, true);
  Entry* all = arena.array_of<Entry>(size_t(n));
  const bool matters = a.align() == Align::kUnset && !in.query_offset && positions_matter(a);
  for (int64_t i = 0; i < n; ++i) {
    Entry& e = all[i];
    e.queries =
        int32_t(b.packed ? in.cumulative_query_lengths(i + 1) - in.cumulative_query_lengths(i) : in.query.shape[2]);
    e.first_query = b.packed ? in.cumulative_query_lengths(i) : 0;
    e.first_key = b.packed ? in.cumulative_key_lengths(i) : 0;
    const int64_t stored = b.packed ? in.cumulative_key_lengths(i + 1) - in.cumulative_key_lengths(i) : in.key.shape[2];
    const int64_t valid = in.key_lengths ? in.key_lengths(i) : stored;
    if (valid < 0 || valid > stored)
      option_error("{}: key_lengths[{}] is {}, expected 0 to {}, the rows of key; it counts the real keys of the entry",
                   function, i, valid, stored);
    const int64_t start = in.key_start ? entry_value(in.key_start, i) : 0;
    if (start < 0)
      option_error(
          "{}: key_start[{}] is {}, expected 0 or more: it is the position of column 0; leave it out where no key was dropped",
          function, i, start);
    const int64_t bottom_right = valid + start - e.queries;
    if (matters && bottom_right != 0)
      option_error(
          "{}: {} queries and {} keys (batch entry {}): where do they stand? Say align top_left or "
          "bottom_right, or give the offset of the first query",
          function, e.queries, valid, i);
    const int64_t offset = in.query_offset                    ? entry_value(in.query_offset, i)
                           : a.align() == Align::kBottomRight ? bottom_right
                                                              : 0;
    if (start + stored > kMostPositions || offset + e.queries > kMostPositions || offset < -kMostPositions)
      option_error(
          "{}: positions of batch entry {} pass {}: query_offset {}, key_start {}; count positions from a later token",
          function, i, kMostPositions, offset, start);
    e.keys = int32_t(valid);
    e.key_start = int32_t(start);
    e.offset = int32_t(offset);
  }
  return {all, size_t(n)};
}

void tensors(const char* function, const Inputs& in, const Bound& b) {
  mask(function, "keep_mask", in.keep_mask, b);
  mask(function, "ignore_mask", in.ignore_mask, b);
  bias(function, in.bias, b);
  per_head(function, "alibi_slopes", in.alibi_slopes, b);
  per_head(function, "sinks", in.sinks, b);
  documents(function, "query_documents", in.query_documents, b, b.longest_query);
  documents(function, "key_documents", in.key_documents, b, b.longest_key);
  for (const Named& p : in.parameters) {
    if (!p.view) option_error("{}: the tensor '{}' is empty; pass a view", function, p.name);
    data(function, std::string(p.name).c_str(), p.view);
  }
}

Dropout dropout(const char* function, const Attention& a, const Inputs& in, const Bound& b) {
  const double p = a.dropout();
  if (in.dropout_keep && in.dropout_seed)
    option_error("{}: dropout_keep and dropout_seed are both given; leave one out", function);
  if (in.dropout_keep && p == 0)
    option_error("{}: dropout_keep is given, but the attention has no dropout; add dropout(p), or leave it out",
                 function);
  mask(function, "dropout_keep", in.dropout_keep, b);
  Dropout d;
  d.active = p > 0 && (in.dropout_keep || in.dropout_seed);
  if (!d.active) return d;
  d.seed = in.dropout_seed.value_or(0);
  d.threshold = dropout_threshold(p);
  d.keep = in.dropout_keep;
  d.factor = p < 1 ? 1 / (1 - p) : 0;
  return d;
}

void names(const char* function, const Attention& a, const Inputs& in) {
  const auto named = [&](std::string_view name) {
    if (name == "sinks" && a.has_sinks()) return true;
    const auto has = [&](const auto& policy) {
      const auto& t = policy->about().tensors;
      return std::find(t.begin(), t.end(), name) != t.end();
    };
    return std::any_of(a.patterns().begin(), a.patterns().end(), has) ||
           std::any_of(a.scores().begin(), a.scores().end(), has);
  };
  const auto refuse = [&](std::string_view name) {
    option_error("{}: the inputs bring '{}', which the attention does not name ({}); name it or leave it out", function,
                 name, a.text());
  };
  for (const BuiltIn& t : kBuiltIn)
    if (in.*t.view && !named(t.name)) refuse(t.name);
  for (const Named& p : in.parameters) {
    for (const BuiltIn& t : kBuiltIn)
      if (t.name == p.name)
        option_error("{}: parameters bring '{}', which has a place of its own; pass it as Inputs::{}", function, p.name,
                     p.name);
    const auto same = [&](const Named& other) { return &other != &p && other.name == p.name; };
    if (std::any_of(in.parameters.begin(), in.parameters.end(), same))
      option_error("{}: parameters bring '{}' twice; leave one out", function, p.name);
    if (!named(p.name)) refuse(p.name);
  }
  const auto require = [&](std::string_view name) {
    for (const BuiltIn& t : kBuiltIn)
      if (t.name == name && in.*t.view) return;
    for (const Named& p : in.parameters)
      if (p.name == name) return;
    option_error("{}: the attention names the tensor '{}' and the inputs have none of that name; pass it",
                 function, name);
  };
  if (a.has_sinks()) require("sinks");
  for (const auto& policy : a.patterns())
    for (std::string_view name : policy->about().tensors) require(name);
  for (const auto& policy : a.scores())
    for (std::string_view name : policy->about().tensors) require(name);
}

}  // namespace qkv::check

namespace qkv {

View<const void> find_tensor(const Inputs& in, std::string_view name) {
  for (const check::BuiltIn& t : check::kBuiltIn)
    if (t.name == name && in.*t.view) return in.*t.view;
  for (const Named& p : in.parameters)
    if (p.name == name) return p.view;
  option_error("find_tensor: the inputs have no tensor '{}'; pass it", name);
}

}  // namespace qkv
