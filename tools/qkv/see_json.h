// Facts about heads as JSON.
#pragma once
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "qkv/links.h"
#include "qkv/tokens.h"

namespace qkv::cli {

nlohmann::json json_of(const HeadFacts&, const Layer&, int64_t head, const Tokens&);
nlohmann::json json_of(const Link&, const Tokens&);
nlohmann::json json_of(const std::vector<RankedLink>&, const Tokens&);
/// Indented, always valid UTF-8, with a line end.
std::string text_of(const nlohmann::json&);

}  // namespace qkv::cli
