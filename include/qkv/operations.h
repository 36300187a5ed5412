// What a tape can differentiate. Each operation computes at once, and records how to go back where its tape records.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "qkv/activation.h"
#include "qkv/attention.h"
#include "qkv/autograd.h"
#include "qkv/positions.h"

namespace qkv::nn {

/// Looks at the forward passes of an attention that a tape records, without changing a bit of them.
class QKV_EXPORT AttentionWatcher {
 public:
  virtual ~AttentionWatcher();
  /// Before a pass: where facts about its rows go, {B, Hq, L} each. Nothing: it does not look at this one, which then costs no
  /// more than one that nobody watches.
  virtual std::optional<qkv::RowStatistics> begin(const Inputs&) = 0;
  /// After a pass that it looks at: with the sums of rows it may observe() the weights.
  virtual void end(const Attention&, const Inputs&, const RowSums&, const Call&) = 0;
};

/// The tensors of an attention: those that may have a gradient as variables, all others as views that live until backward() has
/// run. An absent variable is a tensor that there is not.
struct AttentionVariables {
  Variable query{}, key{}, value{};                       ///< {B, Hq, L, D}, {B, Hkv, S, D}, {B, Hkv, S, Dv}
  Variable bias{}, alibi_slopes{}, sinks{};               ///< as in Inputs, float32 or float64
  std::vector<std::pair<std::string, Variable>> named{};  ///< softcaps, scales, tensors of policies of one's own
  View<void> weights{};                                   ///< where the weights go, if wanted; without a gradient
  Inputs rest{};                        ///< masks, lengths, documents, offsets, numbers without a gradient
  AttentionWatcher* watcher = nullptr;  ///< who looks at the pass, where the tape records it
};

/// attention(query, key, value) {B, L, Hq * Dv}: the heads side by side, as the projection after them reads them. Dropout of the
/// attention acts where the tape trains. Throws as forward().
QKV_EXPORT Variable attend(Tape&, const Attention&, const AttentionVariables&);

// ---- dense layers ----

/// Some rows of a parameter, or elements of a vector; all unless told. Of no parameter: absent.
struct Rows {
  Parameter* of = nullptr;
  int64_t first = 0, count = -1;

  Rows() = default;
  Rows(Parameter& parameter) : of(&parameter) {}  // so that a parameter can be given where all of it is meant
  Rows(Parameter* parameter) : of(parameter) {}
  Rows(Parameter& parameter, int64_t from, int64_t rows) : of(&parameter), first(from), count(rows) {}
};

/// y = x W^T + b.   x {..., in} contiguous, weight {out, in}, bias {out} or absent, y {..., out}
/// A row of y has the same bits whatever the number of rows, and the batch. Where the tape stores 16-bit numbers, weights are
/// rounded to them first. Throws ShapeError, DtypeError.
QKV_EXPORT Variable linear(Tape&, const Variable& x, const Rows& weight, const Rows& bias = {});

/// a + b, of one shape, contiguous. Throws ShapeError, DtypeError.
QKV_EXPORT Variable add(Tape&, const Variable& a, const Variable& b);

// ---- along rows: x {..., dim}, contiguous ----

/// y = (x - mean) / sqrt(var + epsilon) * gain + bias, of each row. gain and bias {dim}, absent: 1 and 0.
/// Throws ShapeError, DtypeError. Ba, Kiros, Hinton 2016, eq. 4.
QKV_EXPORT Variable layer_norm(Tape&, const Variable& x, Parameter* gain, Parameter* bias, double epsilon = 1e-5);
/// y = x / sqrt(mean(x^2) + epsilon) * gain, of each row. Throws ShapeError, DtypeError. Zhang, Sennrich 2019.
QKV_EXPORT Variable rms_norm(Tape&, const Variable& x, Parameter* gain, double epsilon = 1e-6);

/// y = f(x), of each element. Throws ShapeError, DtypeError.
QKV_EXPORT Variable activate(Tape&, Activation, const Variable& x);
/// y = f(a) b for x = {a | b} along the last axis: GEGLU, SwiGLU, ReGLU. Throws ShapeError, DtypeError. Shazeer 2020.
QKV_EXPORT Variable activate_gated(Tape&, Activation, const Variable& x);

/// Each number with probability p as 0, the others times 1 / (1 - p), where the tape trains; else x. Srivastava et al. 2014.
/// Throws OptionError for p outside of 0 to 1.
QKV_EXPORT Variable dropout(Tape&, const Variable& x, double p);

/// y[...] = table[ids[...]].   ids {rows} or {B, L}, table {count, dim}, y {rows, dim} or {B, L, dim}
/// The ids live until backward() has run. Throws ShapeError; OptionError for an id that the table does not have, with its place.
QKV_EXPORT Variable embed(Tape&, View<const int32_t> ids, const Rows& table);
/// x + table[l] for rows l of x {B, L, dim}: learned positions, or numbers {L or more, dim} of x's type without a gradient.
/// Throws ShapeError.
QKV_EXPORT Variable add_rows(Tape&, const Variable& x, const Rows& table);
QKV_EXPORT Variable add_rows(Tape&, const Variable& x, View<const void> table);

// ---- losses: of one element, in double, whatever the tape stores ----

/// How targets count.
struct TargetOptions {
  double label_smoothing =
      0;  ///< targets become 1 - this plus this / classes of every class. Szegedy et al. 2016, as in PyTorch
  int32_t ignored = -100;  ///< rows with this target count for nothing
};
/// The mean over rows that are not ignored of -log softmax(logits)[target].   logits {..., classes}, targets {rows} or {B, L}
/// The targets live until backward() has run. Throws ShapeError, DtypeError; OptionError for a target that is no class.
QKV_EXPORT Variable cross_entropy(Tape&, const Variable& logits, View<const int32_t> targets,
                                  const TargetOptions& = {});
/// The same of logits = x W^T + b, of which no more than some rows are held at a time; backward() computes them once more.
QKV_EXPORT Variable linear_cross_entropy(Tape&, const Variable& x, const Rows& weight, const Rows& bias,
                                         View<const int32_t> targets, const TargetOptions& = {});
/// The mean of (x - y)^2, and of |x - y|; y has no gradient. Throws ShapeError, DtypeError.
QKV_EXPORT Variable mean_squared_error(Tape&, const Variable& x, View<const void> y);
QKV_EXPORT Variable mean_absolute_error(Tape&, const Variable& x, View<const void> y);

// ---- positions ----

/// Turns the rows of x {B, H, L, D} by their positions, which live until backward() has run. Throws as rotary_forward().
QKV_EXPORT Variable rotate(Tape&, const Rotary&, const Variable& x, const RowPositions&);

/// {1, heads, L, S}, in float32 or float64: for AttentionVariables::bias.   table {buckets, heads}
///   bias[h, i, j] = table[bucket of (key_start + j) - (query_offset + i), h].  Raffel et al. 2020. Throws ShapeError, OptionError.
struct T5Pairs {
  int64_t queries = 0, keys = 0, query_offset = 0, key_start = 0;
};
QKV_EXPORT Variable t5_bias(Tape&, const T5Buckets&, const T5Pairs&, const Rows& table);

}  // namespace qkv::nn
