// From a file and options to an Attention with its Inputs.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/dump.h"
#include "qkv/projections.h"

// NOLINTNEXTLINE(readability-identifier-naming)
namespace CLI {  // CLI11 is large: only files that add options include it
class App;
class Option;
}  // namespace CLI

namespace qkv::cli {

/// The attention as options say it. Tensors: FILE.npy, FILE.npz:NAME, or typed (typed.h).
struct AttentionOptions {
  std::string text;  ///< --attention
  bool causal = false, zero_key = false, tiled_heads = false;
  std::string align, window, weight_layout;
  std::optional<double> scale, softcap;
  std::map<std::string, std::string> tensors;  ///< by their name in Inputs
  bool gradients = false;                      ///< whether dout, which there must be, and dlse are read too
  const CLI::Option* alibi = nullptr;          ///< whether --alibi was given, with or without slopes
};
/// --q, --k, --v, or --x with --wq, --wk, --wv. `options` has to live as long as the command, here and below.
void add_tensor_options(CLI::App& command, AttentionOptions& options);
void add_attention_options(CLI::App& command, AttentionOptions& options);
/// --dout, which goes with the flag that asks for gradients.
void add_loss_option(CLI::App& command, const std::string& flag, AttentionOptions& options);

/// Whether they say anything about the formula, so that the file's own does not count; --align alone does not.
bool has_formula_options(const AttentionOptions&);

/// Results never replace what they come from: `file`, the .json beside it, tensors of options. Throws OptionError.
void expect_no_input(const std::string& option, const std::string& output, const std::string& file,
                     const AttentionOptions&);

struct Sizes {
  int64_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0, dim = 0, value_dim = 0;
  /// As a double: empty tensors of a hostile file can claim sizes whose product leaves 64 bits.
  double pairs() const {
    return static_cast<double>(batch) * static_cast<double>(heads) * static_cast<double>(queries) *
           static_cast<double>(keys);
  }
};

/// One layer, ready to compute.
struct Problem {
  Attention attention;
  Inputs inputs;
  View<const void> dout{}, dlse{};  ///< gradients of a loss by out and lse, in their shapes; where they were asked for
  Sizes sizes;
  bool packed = false;
  bool has_values = true;                  ///< without, value has no columns
  int missing_axes = 0;                    ///< of q before {B, H, L, D}: outputs are written without them too
  std::deque<Array> memory;                ///< what the views look at
  std::optional<Projections> projections;  ///< what q, k and v were made from, if so
  std::vector<std::string> notes;          ///< what was understood from shapes, for a person
};

/// q, k, v and everything else of `layer`, from options first, then from the dump and its .json. Without `v` the values have
/// no columns. Throws OptionError, ShapeError, FileError.
Problem make_problem(const AttentionOptions&, const Dump&, int layer);

/// 1 / sqrt(D), and 1 where D is 0.
double default_scale(const Sizes&);
/// The factor of the scores, said or default.
double scale_of(const Problem&);
/// The key head that a query head reads.
int64_t key_head_of(const Problem&, int64_t head);
/// What forward() computes log-sum-exp, weights and scores in: float64 of float64 inputs, else float32.
DType sum_type(const Problem&);

/// Position of query 0 of a batch entry, as forward() sees it.
int64_t offset_of(const Problem&, int64_t batch);
/// Position of key column 0 of a batch entry.
int64_t key_start_of(const Problem&, int64_t batch);
/// How many keys a batch entry has.
int64_t valid_keys(const Problem&, int64_t batch);

/// Converts integers of any type. Throws OptionError naming `name`.
Array to_int32(View<const void>, const std::string& name);

}  // namespace qkv::cli
