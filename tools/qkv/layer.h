// One layer of a file, seen through its weights: computed from q and k, or read.
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
std::string layer_name(const Layer&);
/// "layer 4, head 7", with the batch entry where there are several.
std::string head_name(const Layer&, int64_t head, int64_t batch);

/// kLift: weight times the number of keys that the query sees. Of weights from a file those of exactly 0 count as not seen.
/// kGradient: what a link adds to a loss, of problems with dout.
enum class Measure : uint8_t { kWeight, kLift, kGradient };

enum class WeightsFrom : uint8_t { kQueriesAndKeys, kFile };

class Layer {
 public:
  /// Computes from q and k where they are there, unless `from` says that the file's weights are meant. Whatever takes long
  /// here and in the functions below is told to `progress`, which has to live as long.
  Layer(const Dump&, const AttentionOptions&, int number, WeightsFrom from, Progress& progress);

  int number() const { return number_; }
  int64_t batches() const { return sizes_.batch; }
  int64_t heads() const { return sizes_.heads; }
  int64_t queries() const { return sizes_.queries; }
  int64_t keys() const { return sizes_.keys; }
  /// Where query 0 of a batch entry stands among the keys.
  int64_t offset(int64_t batch) const;
  const Problem* problem() const {
    return problem_ ? &*problem_ : nullptr;
  }  ///< nothing where weights come from the file

  std::vector<HeadFacts> facts(int64_t batch, int links) const;
  HeadFacts facts(int64_t batch, int links, int64_t head) const;  ///< of one head, without a look at the others
  std::vector<bool> padding(int64_t batch) const;  ///< see padding_of; none where weights come from the file
  /// All weights {B, H, L, S}; nothing where they would be too many to hold.
  View<const void> weights() const;
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
  Array weights_;
  bool whole_ = false;
  Sizes sizes_;
  int64_t offset_ = 0;  // of query 0 among the keys, where weights come from the file
};

}  // namespace qkv::cli
