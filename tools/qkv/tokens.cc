#include "qkv/tokens.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "qkv/error.h"
#include "qkv/labels.h"
#include "qkv/sidecar.h"
#include "qkv/token_text.h"

namespace qkv::cli {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kWidestToken = 24;

[[noreturn]] void refuse(const std::string& where) {
  throw FileError(fmt::format(
      "{}: expected JSON with \"tokens\": [\"a\", \"b\", ...], or one such list for each batch entry", where));
}

std::vector<std::string> strings_of(const json& list, const std::string& where) {
  std::vector<std::string> tokens;
  for (const json& token : list) {
    if (!token.is_string()) refuse(where);
    tokens.push_back(token.get<std::string>());
  }
  return tokens;
}

/// The list of a batch entry: of many lists the one at `batch`, of one list that.
std::vector<std::string> tokens_of(const json& value, int64_t batch, const std::string& where) {
  const json& lists = value.is_object() ? value.value("tokens", json()) : value;
  if (!lists.is_array()) refuse(where);
  if (lists.empty() || !lists.front().is_array()) return strings_of(lists, where);
  const auto at = static_cast<size_t>(batch);
  if (at >= lists.size() || !lists[at].is_array()) return {};
  return strings_of(lists[at], where);
}

/// As text, where "scheme" says how a tokenizer wrote them.
std::vector<std::string> decoded(std::vector<std::string> tokens, const json& sidecar, const std::string& where) {
  if (!sidecar.is_object() || !sidecar.contains("scheme")) return tokens;
  const json& scheme = sidecar["scheme"];
  if (scheme == "byte_level") return display_labels(tokens, {}, TokenScheme::kByteLevel);
  if (scheme == "metaspace") return display_labels(tokens, {}, TokenScheme::kMetaspace);
  throw FileError(fmt::format("{}: \"scheme\": expected \"byte_level\" or \"metaspace\", got {}", where,
                              scheme.dump(-1, ' ', false, json::error_handler_t::replace)));
}

json parse(const std::string& text, const std::string& where) {
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) refuse(where);
  return value;
}

std::vector<std::string> from_option(const std::string& text, int64_t batch, const char* option) {
  if (text.ends_with(".json")) {
    const json value = parse(read_json_file(text), text);
    return decoded(tokens_of(value, batch, text), value, text);
  }
  if (text.starts_with("[")) return tokens_of(parse(text, option), batch, option);
  std::vector<std::string> tokens;
  for (size_t first = 0; first <= text.size();) {
    const size_t last = std::min(text.find(',', first), text.size());
    tokens.push_back(text.substr(first, last - first));
    first = last + 1;
  }
  return tokens;
}

void expect_count(const std::vector<std::string>& tokens, int64_t count, const char* option, const char* what) {
  if (static_cast<int64_t>(tokens.size()) == count) return;
  throw OptionError(fmt::format("{}: expected {} tokens, one for each {}, got {}", option, count, what, tokens.size()));
}

std::vector<std::string> safe(std::vector<std::string> tokens) {
  for (std::string& token : tokens) token = safe_text(token);
  return tokens;
}

std::vector<std::string> from_lists(const std::vector<std::vector<std::string>>& lists, int64_t batch, int64_t count,
                                    const char* name, const char* what) {
  if (lists.empty()) return {};
  const auto& tokens = lists.size() == 1 ? lists.front() : lists.at(static_cast<size_t>(batch));
  expect_count(tokens, count, name, what);
  return safe(tokens);
}

/// What lies beside the tensors is used where it fits.
void use_sidecar(const std::string& tensors, int64_t batch, int64_t queries, int64_t keys, Tokens& tokens) {
  const std::string path = sidecar_path(tensors);
  std::error_code ignored;
  if (tensors.empty() || !fs::is_regular_file(path, ignored)) return;
  const json sidecar = parse(read_json_file(path), path);
  if (sidecar.is_object() && !sidecar.contains("tokens")) return;
  const std::vector<std::string> found = safe(decoded(tokens_of(sidecar, batch, path), sidecar, path));
  const auto count = static_cast<int64_t>(found.size());
  if (count == queries) tokens.queries = found;
  if (count == keys) tokens.keys = found;
  if (count != queries && count != keys)
    tokens.note =
        fmt::format("{} has {} tokens, but there are {} queries and {} keys: not used", path, count, queries, keys);
}

std::vector<std::string> cut(std::vector<std::string> tokens, int most, bool ascii) {
  for (std::string& token : tokens) {
    if (display_width(token) > most) token = fit(token, most, Side::kLeft, ascii);
  }
  return tokens;
}

}  // namespace

Tokens cut_tokens(const Tokens& tokens, const Screen& screen) {
  const int most = std::min(kWidestToken, screen.columns / 2);
  return {cut(tokens.queries, most, !screen.unicode), cut(tokens.keys, most, !screen.unicode), tokens.note};
}

Tokens find_tokens(const TokenSource& source, int64_t batch, int64_t queries, int64_t keys) {
  Tokens tokens;
  if (!source.query_lists.empty() || !source.key_lists.empty()) {
    tokens.keys = from_lists(source.key_lists, batch, keys, "tokens", "key");
    tokens.queries = from_lists(source.query_lists, batch, queries, "query_tokens", "query");
    return tokens;
  }
  if (source.option.empty() && source.key_option.empty()) {
    use_sidecar(source.tensors, batch, queries, keys, tokens);
    return tokens;
  }
  if (!source.option.empty()) {
    tokens.queries = safe(from_option(source.option, batch, "--tokens"));
    expect_count(tokens.queries, queries, "--tokens", "query");
    if (queries == keys) tokens.keys = tokens.queries;
  }
  if (!source.key_option.empty()) {
    tokens.keys = safe(from_option(source.key_option, batch, "--key-tokens"));
    expect_count(tokens.keys, keys, "--key-tokens", "key");
  }
  return tokens;
}

}  // namespace qkv::cli
