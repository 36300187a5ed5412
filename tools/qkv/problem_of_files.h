// From a file and options to a problem.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "qkv/dump.h"
#include "qkv/problem.h"

namespace qkv::cli {

/// The attention as options say it. Tensors: FILE.npy, FILE.npz:NAME, or typed (typed.h).
struct AttentionOptions {
  std::string text;  ///< --attention
  bool causal = false, zero_key = false, tiled_heads = false;
  std::string align, window, weight_layout;
  std::optional<double> scale, softcap;
  std::map<std::string, std::string> tensors;  ///< by their name in Inputs
  bool gradients = false;                      ///< whether dout, which there must be, and dlse are read too
  bool alibi = false;                          ///< --alibi was given, with or without slopes
};

/// Whether they say anything about the formula, so that the file's own does not count; --align alone does not.
bool has_formula_options(const AttentionOptions&);

/// Results never replace what they come from: `file`, the .json beside it, tensors of options. Throws OptionError.
void expect_no_input(const std::string& option, const std::string& output, const std::string& file,
                     const AttentionOptions&);

/// q, k, v and everything else of `layer`, from options first, then from the dump and its .json. Without `v` the values have
/// no columns. Throws OptionError, ShapeError, FileError.
Problem make_problem(const AttentionOptions&, const Dump&, int layer);

}  // namespace qkv::cli
