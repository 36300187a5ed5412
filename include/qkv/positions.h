// Positions: sinusoids, rotation of pairs, tables of relative positions, position ids.
//
//   qkv::Rotary rotary({.dim = 64, .base = 500000});                      // numbers only: share it between layers and threads
//   qkv::rotary_forward(rotary, q, {.offsets = cache.lengths()}, q);      // in place, before the rows are appended
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv {

/// Where the rows of a batch stand: row l of entry b at  offset + offsets[b] + (ids ? ids[b, l] : l), which must lie within
/// 2^30 of 0; negative positions are legal.
struct RowPositions {
  int64_t offset = 0;
  View<const int32_t> offsets{};  ///< {B or 1}: what a cache holds already, see qkv/cache.h
  View<const int32_t> ids{};      ///< {B or 1, L}: of padded batches, see position_ids()
};

/// Sines and cosines of positions t: table[l, 2i] = sin(t / base^(2i/dim)), table[l, 2i + 1] = cos of the same; an odd dim ends
/// with a sine. Angles and functions in double, rounded once. Row t + k is row t with each pair turned by k / base^(2i/dim).
///   table {L, dim} or {B, L, dim}, any floating type
/// Throws ShapeError, DtypeError, OptionError. Vaswani et al. 2017, 3.5.
QKV_EXPORT void sinusoidal(const RowPositions&, View<void> table, double base = 10000, const Call& = {});

/// Which elements of a row of r rotary elements make pair i: i with i + r/2 (GPT-NeoX, Hugging Face's Llama), or 2i with 2i + 1
/// (the original paper, GPT-J, the original Llama). Weights trained with one do not work with the other.
enum class RotaryPairs : uint8_t { kHalves, kNeighbours };

// How a model that was trained on short texts reads long ones. The formulas are those of transformers' modeling_rope_utils, in
// double. f_i = base^(-2i/r) below.

/// f_i / factor: positions are pressed together. Chen et al. 2023.
struct LinearScaling {
  double factor = 1;
};
/// The base times factor^(r / (r-2)): the slowest pair is scaled, the fastest is not. bloc97 2023.
struct NtkScaling {
  double factor = 1;
};
/// The base times (factor n / original_length - (factor - 1))^(r / (r-2)) for texts of n > original_length tokens. emozilla 2023.
struct DynamicNtkScaling {
  double factor = 1;
  int64_t original_length = 0;
};
/// Pairs that turn more than beta_fast times within original_length keep f_i, those that turn less than beta_slow times get
/// f_i / factor, in between is a ramp in i. Peng et al. 2023. Cosine and sine are multiplied by the attention factor:
/// 0.1 ln factor + 1 where none is given, or (0.1 mscale ln factor + 1) / (0.1 mscale_all_dim ln factor + 1) where both are
/// (DeepSeek); products of queries and keys get its square.
struct YarnScaling {
  double factor = 1;
  int64_t original_length = 0;
  double beta_fast = 32, beta_slow = 1;
  std::optional<double> attention_factor{}, mscale{}, mscale_all_dim{};
  enum class Ramp : uint8_t {
    kWholePairs,
    kExact
  } ramp = Ramp::kWholePairs;  ///< whether its ends are rounded outwards
};
/// Wavelengths above original_length / low_frequency_factor are divided by factor, those below original_length /
/// high_frequency_factor kept, in between interpolated. Llama 3.1, Grattafiori et al. 2024.
struct Llama3Scaling {
  double factor = 8, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_length = 8192;
};
/// f_i / short_factors[i], of texts of more than original_length tokens f_i / long_factors[i]. Cosine and sine are multiplied by the
/// attention factor: sqrt(1 + ln factor / ln original_length) where none is given, with factor the longest length over the
/// original one. Ding et al. 2024.
struct LongRopeScaling {
  std::vector<double> short_factors, long_factors;  ///< {r/2} each
  int64_t original_length = 0;
  double factor = 1;
  std::optional<double> attention_factor{};
};
using RotaryScaling = std::variant<std::monostate, LinearScaling, NtkScaling, DynamicNtkScaling, YarnScaling,
                                   Llama3Scaling, LongRopeScaling>;

struct RotaryOptions {
  int64_t dim = 0;  ///< r: elements of a row that turn, the first ones; even, at most the head size
  double base = 10000;
  RotaryPairs pairs = RotaryPairs::kHalves;
  RotaryScaling scaling{};
};

/// How fast each pair turns: numbers, no memory of calls, so a position has the same angles whatever came before.
class QKV_EXPORT Rotary {
 public:
  /// `text_length` matters to dynamic NTK and LongRoPE alone; absent: not longer than the original. Throws OptionError.
  explicit Rotary(const RotaryOptions&, std::optional<int64_t> text_length = {});
  int64_t dim() const { return 2 * int64_t(frequencies_.size()); }
  RotaryPairs pairs() const { return pairs_; }
  std::span<const double> frequencies() const { return frequencies_; }  ///< {r/2}: radians a position
  double attention_factor() const { return attention_factor_; }         ///< of cosine and sine

 private:
  std::vector<double> frequencies_;
  double attention_factor_ = 1;
  RotaryPairs pairs_;
};

/// Turns the first r elements of each row by its position, pair by pair, and copies the others:
///   y[first]  = x[first] cos(t f_i) - x[second] sin(t f_i)
///   y[second] = x[second] cos(t f_i) + x[first] sin(t f_i)         times the attention factor
///   x, y {B, H, L, D} of one floating type, any strides; y may be x, else they share no memory
/// Angles in double, cosine and sine rounded once, to float32 (float64: to double). A row has the same bits whatever the
/// batch, the other rows, the strides and the way its position was given. Throws ShapeError, DtypeError, OptionError, Cancelled.
/// Su et al. 2021. O(B H L D); memory-bound.
QKV_EXPORT void rotary_forward(const Rotary&, View<const void> x, const RowPositions&, View<void> y, const Call& = {});
/// Its gradient: the turn back, dx = attention factor * R(-t f) dy. dy, dx like x, y.
QKV_EXPORT void rotary_backward(const Rotary&, View<const void> dy, const RowPositions&, View<void> dx,
                                const Call& = {});
/// What rotary_forward() multiplies with: cosine, sine {L, r/2} or {B, L, r/2}, any floating type, attention factor included.
QKV_EXPORT void rotary_table(const Rotary&, const RowPositions&, View<void> cosine, View<void> sine, const Call& = {});

// ---- relative positions: an index says which row of a learned table a pair of query and key takes ----

/// T5's buckets of a distance d = key position - query position. Half of them (of each direction's) are for one distance
/// each, the others grow with the logarithm up to max_distance. One-sided: keys after the query are in bucket 0.
/// Raffel et al. 2020; the single-precision logarithm and truncation of Hugging Face, so that borders agree.
struct T5Buckets {
  int buckets = 32;
  int max_distance = 128;
  enum class Sides : uint8_t { kBoth, kPast } sides = Sides::kBoth;  ///< encoders: both; decoders: the past
};
/// Throws OptionError.
QKV_EXPORT int t5_bucket(const T5Buckets&, int64_t distance);
/// index[i, j] = bucket of (key_start + j) - (query_offset + i).   index {L, S}
QKV_EXPORT void t5_index(const T5Buckets&, int64_t query_offset, int64_t key_start, View<int32_t> index);

/// Pairs of cells of a window of height h and width w, cells numbered row by row, as windowed vision models have it:
///   index[p, q] = (y_p - y_q + h - 1) (2w - 1) + (x_p - x_q + w - 1)        index {h w, h w}; values below (2h-1)(2w-1)
/// Throws ShapeError, OptionError. Liu et al. 2021 (Swin).
QKV_EXPORT void window_index(int64_t height, int64_t width, View<int32_t> index);

/// bias[0, h, i, j] = table[index[i, j], h]: for Inputs::bias.   index {L, S}; table {rows, H}; bias {1, H, L, S}; one type,
/// any of the floating ones. Throws ShapeError, DtypeError, and OptionError for an index that the table does not have.
QKV_EXPORT void relative_bias_forward(View<const int32_t> index, View<const void> table, View<void> bias,
                                      const Call& = {});
/// dtable[n, h] = sum of dbias[0, h, i, j] over the pairs with index[i, j] = n: in double, row by row, rounded once.
/// Any floating types.
QKV_EXPORT void relative_bias_backward(View<const int32_t> index, View<const void> dbias, View<void> dtable,
                                       const Call& = {});

/// Transformer-XL's shift: column c of x {B, H, L, S} is the distance S - 1 - c back; y {B, H, L, S}, not x, gets them by keys,
///   y[i, j] = x[i, j - i + L - 1]  for j <= i + S - L.
/// What lies right of that belongs to no pair that a causal mask leaves: a zero, then the next row's beginning.
/// Same types. Throws ShapeError, DtypeError. Dai et al. 2019, appendix B.
QKV_EXPORT void relative_shift_forward(View<const void> x, View<void> y, const Call& = {});
/// Its gradient: each element of dx gets the one of dy that took it, or 0.
QKV_EXPORT void relative_shift_backward(View<const void> dy, View<void> dx, const Call& = {});

// ---- position ids ----

/// ids[b, l] = number of tokens before l in entry b; 0 where there is no token.   is_token, ids {B, L}. Padding may be left or
/// right; a mask of a cache's whole length gives ids for all of it. Throws ShapeError.
QKV_EXPORT void position_ids(View<const bool> is_token, View<int32_t> ids);

}  // namespace qkv
