// An Attention with its Inputs, ready to compute.
#pragma once
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/attention.h"
#include "qkv/projections.h"

namespace qkv::cli {

struct Sizes {
  int64_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0, dim = 0, value_dim = 0;
  /// As a double: empty tensors of a hostile file can claim sizes whose product leaves 64 bits.
  double pairs() const {
    return static_cast<double>(batch) * static_cast<double>(heads) * static_cast<double>(queries) *
           static_cast<double>(keys);
  }
};

/// One layer.
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

/// Of tensors in memory, as forward() takes them; without value there are no values. They have to live as long. Throws what
/// forward() throws.
Problem problem_of(Attention, Inputs);
Sizes sizes_of(const Inputs&);
/// Values without columns.
View<const void> no_values(View<const void> key);

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

/// Throws OptionError, which names the option, for a value that is not 0 to count - 1.
void expect_in_range(std::string_view option, int64_t value, int64_t count);

/// Converts integers of any type. Throws OptionError naming `name`.
Array to_int32(View<const void>, const std::string& name);

}  // namespace qkv::cli
