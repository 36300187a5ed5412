// The parts of qkv see.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "qkv/layer.h"
#include "qkv/links.h"
#include "qkv/terminal.h"
#include "qkv/tokens.h"

namespace qkv::cli {

struct SeeOptions {
  std::string file, between;
  TokenSource tokens;
  AttentionOptions attention;
  int layer = -1, head = -1, top = 8;
  int64_t batch = 0;
  bool mask = false, only_links = false, from_file = false, log_scale = false, json = false;
  ColorWhen color = ColorWhen::kAuto;
  std::optional<Rank> rank;  ///< absent: by surprise, of a head with a habit by weight
};

/// One head: heat map, what it does, its strongest links.
std::string head_text(const SeeOptions&, const Layer&, const Tokens&, const Screen&);
std::string head_json(const SeeOptions&, const Layer&, const Tokens&);

/// All heads of some layers: a table of what each does, and the strongest links of every layer.
std::string heads_text(const SeeOptions&, const std::vector<Layer>&, const Tokens&, const Screen&);
std::string heads_json(const SeeOptions&, const std::vector<Layer>&, const Tokens&);

/// Who may see whom, with the rule that hides each pair.
std::string mask_text(const SeeOptions&, const Layer&, const Tokens&, const Screen&);
std::string mask_json(const SeeOptions&, const Layer&);

/// "bad(5)", or "5" without tokens.
std::string token_name(const std::vector<std::string>& tokens, int64_t index);

}  // namespace qkv::cli
