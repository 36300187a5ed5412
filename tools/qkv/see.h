// The parts of qkv see.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "qkv/layer.h"
#include "qkv/links.h"
#include "qkv/png.h"
#include "qkv/terminal.h"
#include "qkv/tokens.h"

namespace qkv::cli {

/// What is drawn of some layers.
struct SeeOptions {
  std::string title;  ///< of a page
  TokenSource tokens;
  int layer = -1, head = -1, top = 8;
  int64_t batch = 0, row = -1;
  bool one_batch = false;  ///< a page has all batch entries without it
  bool mask = false, grid = false, gradient = false, only_links = false, plain = false, json = false;
  std::string between;
  Scale scale = Scale::kLinear;
  std::optional<Rank> rank;  ///< absent: by surprise, of a head with a habit by weight
  bool typed = true;         ///< on a command line, not said by a program

  Measure measure() const {
    if (gradient) return Measure::kGradient;
    return scale == Scale::kLift ? Measure::kLift : Measure::kWeight;
  }
  /// As messages name an option: "--head", to a program "head".
  std::string option(std::string_view name) const { return fmt::format("{}{}", typed ? "--" : "", name); }
  std::string row_option() const { return option(typed ? "row" : "query"); }
};

/// Whatever the options say: one head, all heads, a mask, ..., as text for a screen or as JSON. `tokens`: those of o.batch.
/// Throws OptionError where options do not go together.
std::string see_text(const SeeOptions&, const std::vector<Layer>&, const Tokens&, const Screen&);

/// One head, or all of them, as a picture.
struct Picture {
  Image image;
  std::string caption;
};
Picture picture_of(const SeeOptions&, const std::vector<Layer>&);

/// Whether one head is meant: it is said, or there is no other.
bool shows_one_head(const SeeOptions&, const std::vector<Layer>&);

/// Throws OptionError where there is no such head, query or batch entry.
void check(const SeeOptions&, const Layer&);

/// One head: heat map, what it does, its strongest links.
std::string head_text(const SeeOptions&, const Layer&, const Tokens&, const Screen&);
std::string head_json(const SeeOptions&, const Layer&, const Tokens&);

/// One query of a head: its keys by weight, as bars.
std::string row_text(const SeeOptions&, const Layer&, const Tokens&, const Screen&);
std::string row_json(const SeeOptions&, const Layer&, const Tokens&);

/// One head: what each link adds to a loss, as a heat map and by the strongest links.
std::string gradient_text(const SeeOptions&, const Layer&, const Tokens&, const Screen&);
std::string gradient_json(const SeeOptions&, const Layer&, const Tokens&);

/// All heads of some layers as small pictures.
std::string grid_text(const SeeOptions&, const std::vector<Layer>&, const Screen&);

/// All heads of some layers: a table of what each does, and the strongest links of every layer.
std::string heads_text(const SeeOptions&, const std::vector<Layer>&, const Tokens&, const Screen&);
std::string heads_json(const SeeOptions&, const std::vector<Layer>&, const Tokens&);

/// Who may see whom, with the rule that hides each pair.
std::string mask_text(const SeeOptions&, const Layer&, const Tokens&, const Screen&);
std::string mask_json(const SeeOptions&, const Layer&);

/// The same in sentences, for screen readers: no tables, no pictures.
std::string plain_head(const SeeOptions&, const Layer&, const Tokens&);
std::string plain_row(const SeeOptions&, const Layer&, const Tokens&);
std::string gradient_plain(const SeeOptions&, const Layer&, const Tokens&);
std::string plain_heads(const SeeOptions&, const std::vector<Layer>&, const Tokens&);
std::string plain_mask(const SeeOptions&, const Layer&);

/// "computed from q and k", or "from the file", to a program "as given".
const char* source_of(const SeeOptions&, const Layer&);
/// What a head does, in sentences.
std::string description(const HeadFacts&);
/// "bad(5)", or "5" without tokens.
std::string token_name(const std::vector<std::string>& tokens, int64_t index);

/// The keys of one query with their weights, the largest first, without those of weight 0.
struct RowKeys {
  struct Key {
    int64_t key;
    double weight;
  };
  std::vector<Key> keys;
  double sum = 0;                   ///< of all of them; with a sink below 1
  std::vector<std::string> hidden;  ///< "7 by causal"
};
RowKeys keys_of_row(const Layer&, int64_t batch, int64_t head, int64_t query);

/// How many pairs of one head each rule hides (or leaves visible); rules without any are left out.
struct RuleCount {
  uint8_t rule;
  std::string name;
  int64_t pairs;
};
std::vector<RuleCount> count_rules(const SeeOptions&, const Layer&);

}  // namespace qkv::cli
