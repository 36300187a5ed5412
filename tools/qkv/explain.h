// The parts of qkv explain.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "qkv/agreement.h"
#include "qkv/io.h"
#include "qkv/problem.h"
#include "qkv/progress.h"
#include "qkv/terminal.h"
#include "qkv/tokens.h"

namespace qkv::cli {

/// What becomes of one key. All numbers in float64.
struct KeySteps {
  int64_t key = 0;
  std::vector<double> key_vector, value;
  double dot = 0, scaled = 0;
  std::vector<double> modified;  ///< after each modifier; empty without any
  uint8_t rule = 0;              ///< of hiding_rule_of(): which one hides it
  double exponential = 0;        ///< exp(score - maximum); 0 where hidden
  double weight = 0;
  int distance = 0;  ///< between the positions of query and key

  double score() const { return before(modified.size()); }
  /// What the m-th modifier is given.
  double before(size_t m) const { return m == 0 ? scaled : modified[m - 1]; }
};

/// A term of the sum that belongs to no key: the sink, the zero key.
struct Keyless {
  const char* name = "";
  double score = 0, exponential = 0;
};

/// What the loss says of one key, by this query alone; 0 where it is hidden.
struct KeyGradients {
  double by_weight = 0;          ///< dP = dout . v
  std::vector<double> by_score;  ///< dS by the score after 0, 1, .. all modifiers
  std::vector<double> key, value;
};

/// The way back from a loss to this query.
struct QueryGradients {
  std::vector<double> dout;      ///< of the loss by this query's out
  std::optional<double> dlse;    ///< and by its log-sum-exp
  double delta = 0;              ///< dout . out - dlse
  std::vector<KeyGradients> of;  ///< each of Explanation::keys
  std::vector<double> keyless;   ///< dS of each of Explanation::keyless
  std::vector<double> query;     ///< {D}
};

/// Every step of one query of one head.
struct Explanation {
  int64_t batch = 0, head = 0, query = 0;
  int64_t dim = 0;
  double scale = 1;
  std::vector<std::string> modifiers;  ///< "softcap:30", "alibi", ...
  std::vector<std::string> rules;      ///< what KeySteps::rule means
  double alibi_slope = 0;
  std::vector<double> query_vector;
  std::vector<KeySteps> keys;  ///< all that exist, hidden or not; those past the length are not there
  int64_t missing_keys = 0;    ///< columns past the length
  std::vector<Keyless> keyless;
  double maximum = 0, sum = 0, lse = 0;
  std::vector<double> out;                  ///< {Dv}
  std::vector<double> heads_out;            ///< of projections with wo: all heads side by side, by the library
  std::vector<double> projected;            ///< and times wo
  std::optional<QueryGradients> gradients;  ///< where the problem has dout
  std::vector<Agreement> agreements;
};
/// Throws Cancelled where the call's stop is requested, like the two below.
Explanation explain_query(const Problem&, int64_t batch, int64_t head, int64_t query, const Call& call = {});

/// A line of the table of all tensors.
struct TensorFacts {
  std::string name, type, shape;
  int64_t bytes = 0, rows = 0;
  std::vector<double> row_sums;    ///< of at most four rows: each; nothing for integers
  double lowest = 0, highest = 0;  ///< of the row sums that are finite
  int64_t other_rows = 0;          ///< whose sum is NaN or infinite
};
/// Of the problem, and of others that came with it.
std::vector<TensorFacts> facts_of_tensors(const Problem&, std::span<const NamedTensor> others, const Call& call = {});

/// As a page of a textbook. `most`: keys shown one by one; of more the strongest, and what the rest holds.
std::string explanation_text(const Explanation&, const Problem&, const std::vector<TensorFacts>&, const Tokens&,
                             int most, const Screen&);
std::string explanation_json(const Explanation&, const Problem&, const std::vector<TensorFacts>&, const Tokens&,
                             const Call& call = {});

/// Why scores are divided by sqrt(D), measured.
struct ScalingOptions {
  std::vector<int64_t> dims = {8, 64, 128, 512};
  int64_t keys = 5, draws = 4001;
  uint64_t seed = 1;
  bool json = false;
  ColorWhen color = ColorWhen::kAuto;
};
/// A table, or JSON.
std::string explain_scaling(const ScalingOptions&, Progress&);

}  // namespace qkv::cli
