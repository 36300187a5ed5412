// The words that rows and columns of weights belong to.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "qkv/terminal.h"

namespace qkv::cli {

/// Safe to print (labels.h). Empty where nothing is known.
struct Tokens {
  std::vector<std::string> queries, keys;
  std::string note;  ///< why a file beside the tensors was not used
};

/// The same for text on a screen: what is wider than 24 columns, or half of a narrow screen, is cut.
Tokens cut_tokens(const Tokens&, const Screen&);

struct TokenSource {
  std::string option;      ///< --tokens: a,b,c, or ["a", ","], or FILE.json
  std::string key_option;  ///< --key-tokens, where the keys are others
  std::string tensors;     ///< the file of tensors: NAME.json is looked for beside NAME.npz
  /// From a program, instead of all that: one list of all batch entries, or one of each; of queries and of keys.
  std::vector<std::vector<std::string>> query_lists{}, key_lists{};
};

/// JSON: a list of tokens, a list of such lists (one for each batch entry), or an object with that as "tokens".
/// Throws OptionError where the tokens of an option or a program are not as many as the queries or keys, FileError for a
/// file that is no such JSON.
Tokens find_tokens(const TokenSource&, int64_t batch, int64_t queries, int64_t keys);

}  // namespace qkv::cli
