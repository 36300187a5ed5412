// The next token from logits.
//
//   const qkv::Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 7});
//   sampler(logits, {.step = n}, tokens);                                  // logits {B, classes}, tokens {B}
#pragma once
#include <cstdint>

#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv {

struct SamplingOptions {
  double temperature = 1;  ///< logits are divided by it; 0: always the likeliest
  int64_t top_k = 0;       ///< of the k likeliest alone; 0: of all
  double top_p = 1;        ///< of the fewest likeliest whose shares sum to p or more. Holtzman et al. 2020, "nucleus"
  uint64_t seed = 0;
};

/// Which random numbers: texts with the same seed and sequence number draw the same at the same step.
struct SamplingPlace {
  int64_t step = 0;      ///< of the token in its text
  int64_t sequence = 0;  ///< of row 0; row b draws as sequence + b
};

/// Draws a token of each row of logits:
///   share = softmax(logits / temperature) over the top_k likeliest; of those the first whose shares sum to top_p or more, in the
///   order of likelihood; one of these in proportion to its share.
/// Of equal logits the lower token counts as likelier. Shares are in double, summed in a fixed order; a draw has 53 bits and is a
/// function of seed, step and sequence: the same tokens for any number of threads, and of a row alone. A logit of -inf is never drawn.
class QKV_EXPORT Sampler {
 public:
  /// Throws OptionError: a temperature below 0, top_k below 0, top_p outside of (0, 1], numbers that are not finite.
  explicit Sampler(const SamplingOptions&);
  /// logits {B, classes} of any floating type, any strides; tokens {B}. Throws ShapeError, DtypeError; OptionError for a row with NaN
  /// or +inf, or of -inf alone, and then nothing was written. O(classes + n log classes) for n tokens that
  /// are left by top_k and top_p.
  void operator()(View<const void> logits, const SamplingPlace&, View<int32_t> tokens, const Call& = {}) const;
  const SamplingOptions& options() const { return options_; }

 private:
  SamplingOptions options_;
};

}  // namespace qkv
