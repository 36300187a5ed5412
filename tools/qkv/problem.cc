#include "qkv/problem.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

template <class T> void narrow(View<const T> from, const std::string& name, int32_t*& to) {
  for (int64_t a = 0; a < from.shape[0]; ++a) {
    for (int64_t b = 0; b < from.shape[1]; ++b) {
      const T value = from(a, b);
      if (!std::in_range<int32_t>(value))
        throw OptionError(fmt::format("{}: expected numbers of 32 bits, got {}", name, value));
      *to++ = static_cast<int32_t>(value);  // NOLINT(bugprone-signed-char-misuse): of int8 a number is meant
    }
  }
}

/// Sequences of a packed batch: the longest counts.
Sizes packed_sizes(const Inputs& in) {
  const auto longest = [](View<const int32_t> c) {
    int64_t most = 0;
    for (int64_t n = 0; n + 1 < c.shape[0]; ++n) most = std::max<int64_t>(most, int64_t{c(n + 1)} - c(n));
    return most;
  };
  return {std::max<int64_t>(0, in.cumulative_query_lengths.shape[0] - 1),
          in.query.shape[1],
          in.key.shape[1],
          longest(in.cumulative_query_lengths),
          longest(in.cumulative_key_lengths),
          in.query.shape[2],
          in.value.shape[2]};
}

}  // namespace

Array to_int32(View<const void> x, const std::string& name) {
  if (x.rank > 2) throw ShapeError(fmt::format("{}: expected one or two axes, got {}", name, shape_text(x)));
  Array result(DType::kInt32, {x.shape.begin(), x.shape.begin() + x.rank});
  auto* to = static_cast<int32_t*>(result.data());
  switch (x.dtype) {
    case DType::kInt8: narrow(x.as<const int8_t>(), name, to); break;
    case DType::kInt16: narrow(x.as<const int16_t>(), name, to); break;
    case DType::kInt32: narrow(x.as<const int32_t>(), name, to); break;
    case DType::kInt64: narrow(x.as<const int64_t>(), name, to); break;
    case DType::kUInt8: narrow(x.as<const uint8_t>(), name, to); break;
    case DType::kUInt16: narrow(x.as<const uint16_t>(), name, to); break;
    case DType::kUInt32: narrow(x.as<const uint32_t>(), name, to); break;
    case DType::kUInt64: narrow(x.as<const uint64_t>(), name, to); break;
    default:
      throw DtypeError(
          fmt::format("{}: expected whole numbers, got {}; save x.astype(np.int32)", name, qkv::name(x.dtype)));
  }
  return result;
}

void expect_in_range(std::string_view option, int64_t value, int64_t count) {
  if (value >= 0 && value < count) return;
  throw OptionError(count == 0 ? fmt::format("{} {}: there is none", option, value)
                               : fmt::format("{} {}: expected 0 to {}", option, value, count - 1));
}

Sizes sizes_of(const Inputs& in) {
  if (in.cumulative_query_lengths) return packed_sizes(in);
  return {in.query.shape[0], in.query.shape[1], in.key.shape[1],  in.query.shape[2],
          in.key.shape[2],   in.query.shape[3], in.value.shape[3]};
}

View<const void> no_values(View<const void> key) {
  key.shape[static_cast<size_t>(std::max(0, key.rank - 1))] = 0;
  return key;
}

Problem problem_of(Attention attention, Inputs inputs) {
  Problem p;
  p.has_values = static_cast<bool>(inputs.value);
  if (!p.has_values) inputs.value = no_values(inputs.key);
  p.attention = std::move(attention);
  p.inputs = std::move(inputs);
  p.packed = static_cast<bool>(p.inputs.cumulative_query_lengths);
  forward(p.attention, p.inputs, {});  // the checks alone
  p.sizes = sizes_of(p.inputs);
  return p;
}

double default_scale(const Sizes& s) { return s.dim > 0 ? 1 / std::sqrt(static_cast<double>(s.dim)) : 1; }

double scale_of(const Problem& p) { return p.attention.scale().value_or(default_scale(p.sizes)); }

int64_t key_head_of(const Problem& p, int64_t head) {
  const Sizes& s = p.sizes;
  return p.attention.heads() == HeadMapping::kTiled ? head % s.key_heads : head / (s.heads / s.key_heads);
}

DType sum_type(const Problem& p) { return p.inputs.query.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

int64_t valid_keys(const Problem& p, int64_t batch) {
  const Inputs& in = p.inputs;
  if (p.packed) return int64_t{in.cumulative_key_lengths(batch + 1)} - in.cumulative_key_lengths(batch);
  return in.key_lengths ? in.key_lengths(batch) : p.sizes.keys;
}

int64_t offset_of(const Problem& p, int64_t batch) {
  const Inputs& in = p.inputs;
  if (in.query_offset) return in.query_offset(in.query_offset.shape[0] == 1 ? 0 : batch);
  if (p.attention.align() != Align::kBottomRight) return 0;
  const int64_t queries =
      p.packed ? int64_t{in.cumulative_query_lengths(batch + 1)} - in.cumulative_query_lengths(batch) : p.sizes.queries;
  return key_start_of(p, batch) + valid_keys(p, batch) - queries;
}

int64_t key_start_of(const Problem& p, int64_t batch) {
  const View<const int32_t> starts = p.inputs.key_start;
  return starts ? starts(starts.shape[0] == 1 ? 0 : batch) : 0;
}

}  // namespace qkv::cli
