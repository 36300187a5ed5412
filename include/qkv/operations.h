// What a tape can differentiate. Each operation computes at once, and records how to go back where its tape records.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "qkv/activation.h"
#include "qkv/attention.h"
#include "qkv/autograd.h"
#include "qkv/positions.h"

namespace qkv::nn {

/// The tensors of an attention: those that may have a gradient as variables, all others as views that live until backward() has
/// run. An absent variable is a tensor that there is not.
struct AttentionVariables {
  Variable query{}, key{}, value{};                       ///< {B, Hq, L, D}, {B, Hkv, S, D}, {B, Hkv, S, Dv}
  Variable bias{}, alibi_slopes{}, sinks{};               ///< as in Inputs, float32 or float64
  std::vector<std::pair<std::string, Variable>> named{};  ///< softcaps, scales, tensors of policies of one's own
  View<void> weights{};                                   ///< where the weights go, if wanted; without a gradient
  Inputs rest{};                                          ///< masks, lengths, documents, offsets
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

// ---- positions ----

/// Turns the rows of x {B, H, L, D} by their positions, which live until backward() has run. Throws as rotary_forward().
QKV_EXPORT Variable rotate(Tape&, const Rotary&, const Variable& x, const RowPositions&);

}  // namespace qkv::nn
