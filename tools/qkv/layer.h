// One layer, seen through its weights: computed from q and k, or given.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "qkv/attribution.h"
#include "qkv/facts.h"
#include "qkv/heatmap.h"
#include "qkv/problem.h"
#include "qkv/progress.h"

namespace qkv::cli {

class Layer;
/// "layer 4"; "all heads" where layers have no numbers.
std::string layer_name(int number);
/// "layer 4, head 7", with the batch entry where there are several.
std::string head_name(const Layer&, int64_t head, int64_t batch);

/// kLift: weight times the number of keys that the query sees. Of given weights those of exactly 0 count as not seen.
/// kGradient: what a link adds to a loss, of problems with dout.
enum class Measure : uint8_t { kWeight, kLift, kGradient };

class Layer {
 public:
  /// Computes the weights. What takes long here and in the functions below is told to `progress`, which has to live as long.
  Layer(Problem, int number, Progress& progress);
  /// Weights {B, H, L, S}, {H, L, S} or {L, S} that somebody computed; kBottomRight: the last query stands at the last key.
  /// Throws ShapeError, and OptionError for what is no softmax.
  Layer(Array weights, Align, int number, Progress& progress);
  Layer(View<const void> weights, Align, int number, Progress& progress);  ///< they have to live as long

  int number() const { return number_; }
  int64_t batches() const { return sizes_.batch; }
  int64_t heads() const { return sizes_.heads; }
  int64_t queries() const { return sizes_.queries; }
  int64_t keys() const { return sizes_.keys; }
  /// Where query 0 of a batch entry stands among the keys.
  int64_t offset(int64_t batch) const;
  /// Nothing where weights were given.
  const Problem* problem() const { return problem_ ? &*problem_ : nullptr; }

  std::vector<HeadFacts> facts(int64_t batch, int links) const;
  HeadFacts facts(int64_t batch, int links, int64_t head) const;  ///< of one head, without a look at the others
  std::vector<bool> padding(int64_t batch) const;                 ///< see padding_of; none where weights were given
  /// All weights {B, H, L, S}; nothing where they would be too many to hold.
  View<const void> weights() const { return weights_; }
  /// One head as a picture: every weight while there are few, else the largest of each square; with what masks hide.
  Matrix picture(int64_t batch, int64_t head, Measure) const;
  /// What the links of one head add to a loss, its picture with what masks hide. The problem has dout.
  Attribution attribution(int64_t batch, int64_t head, size_t links) const;
  /// All weights of one query {S}, at O(S) memory.
  std::vector<double> row(int64_t batch, int64_t head, int64_t query) const;

  Progress& progress() const { return *progress_; }

 private:
  int number_;
  Progress* progress_;
  std::optional<Problem> problem_;
  Array memory_;
  View<const void> weights_{};
  bool whole_ = false;  // weights_ has them all
  Sizes sizes_;
  int64_t offset_ = 0;  // of query 0 among the keys, where weights were given
};

}  // namespace qkv::cli
