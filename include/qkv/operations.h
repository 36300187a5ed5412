// What a tape can differentiate. Each operation computes at once, and records how to go back where its tape records.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "qkv/attention.h"
#include "qkv/autograd.h"

namespace qkv::nn {

/// The tensors of an attention: those that may have a gradient as variables, all others as views that live until backward() has
/// run. An absent variable is a tensor that there is not.
struct AttentionVariables {
  Variable query{}, key{}, value{};                       ///< {B, Hq, L, D}, {B, Hkv, S, D}, {B, Hkv, S, Dv}
  Variable bias{}, alibi_slopes{}, sinks{};               ///< as in Inputs, float32 or float64
  std::vector<std::pair<std::string, Variable>> named{};  ///< softcaps, scales, tensors of policies of one's own
  Inputs rest{};                                          ///< masks, lengths, documents, offsets
};

/// attention(query, key, value) {B, L, Hq * Dv}: the heads side by side, as the projection after them reads them. Dropout of the
/// attention acts where the tape trains. Throws as forward().
QKV_EXPORT Variable attend(Tape&, const Attention&, const AttentionVariables&);

}  // namespace qkv::nn
