#include "messages.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace qkv::python {
namespace {

/// What C++ calls a tensor, and the keyword for it.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"key_lengths", "kv_lengths"},
    {"query_offset", "q_offset"},
    {"cumulative_query_lengths", "cu_seqlens_q"},
    {"cumulative_key_lengths", "cu_seqlens_k"},
    {"query_documents", "document_ids of queries"},
    {"key_documents", "document_ids of keys"},
    {"softcaps", "softcap"},
    {"scales", "scale"},
    {"dropout_seed", "seed"},
    {"merge_partials", "merge"},
};
/// Names that are words too: "query has shape ..." is about the tensor, "query heads" and "query is 7" are not.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {{"query", "q"}, {"key", "k"}, {"value", "v"}};
constexpr std::string_view kAfterNames[] = {" has ", " is {", " is a ", " is missing", " but"};

/// Advice for who writes C++, and the same for who writes Python.
constexpr std::pair<std::string_view, std::string_view> kPhrases[] = {
    {"Say align top_left or bottom_right, or give the offset of the first query",
     "Say align=\"top_left\" or align=\"bottom_right\", or give q_offset, the position of the first query"},
    {"; add dropout(p), or leave it out", "; pass dropout=p, or leave it out"},
    {"; expand with a stride of 0 where", "; broadcast (np.broadcast_to, expand) where"},
    {", as forward() gives it", ", as attention(return_lse=True) gives it"},
    {"; ask forward() for it and pass it on", "; attention(return_lse=True) gives it"},
    {", or give cumulative lengths for a packed batch", ", or call attention_varlen for a packed batch"},
    {"; a policy of your own comes through a Vocabulary", ""},
    {"; pass a view", "; pass it"},
};
constexpr std::string_view kFunctions[] = {
    "forward",      "backward",     "observe",     "merge_partials",   "merge_partials_backward",
    "explain_path", "keep_mask_of", "find_tensor", "Attention::parse", "ThreadPool"};

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// "{2, 4}" as "(2, 4)" and "{4}" as "(4,)".
std::string shape(std::string_view text) {
  const bool is_single = !text.empty() && text.find(',') == text.npos;
  return "(" + std::string(text) + (is_single ? ",)" : ")");
}

std::string with_phrases(std::string_view message) {
  std::string text(message);
  for (const auto& [from, to] : kPhrases)
    if (const size_t at = text.find(from); at != text.npos) text.replace(at, from.size(), to);
  return text;
}

bool ends_as_name(std::string_view rest) {
  return rest.empty() || std::string_view(",;:.)[").find(rest[0]) != rest.npos;
}

/// The keyword for a word of a message: the word itself where it is none.
std::string_view keyword(std::string_view before, std::string_view word, std::string_view rest) {
  const auto is_word = [&](const auto& n) { return n.first == word; };
  if (const auto* known = std::ranges::find_if(kNames, is_word); known != std::end(kNames)) return known->second;
  const auto* known = std::ranges::find_if(kWords, is_word);
  if (known == std::end(kWords)) return word;
  const auto follows = [&](std::string_view text) { return rest.starts_with(text); };
  const bool is_of = before.ends_with("of ") || before.ends_with("in ");
  return std::ranges::any_of(kAfterNames, follows) || (is_of && ends_as_name(rest)) ? known->second : word;
}

}  // namespace

std::string for_callers(std::string_view text) {
  const std::string phrased = with_phrases(text);
  std::string_view message = phrased;
  const size_t colon = std::min(message.find(": "), message.size());
  const std::string_view function = message.substr(0, colon);
  if (std::ranges::find(kFunctions, function) != std::end(kFunctions)) message.remove_prefix(colon + 2);
  if (function == "Attention::parse") return std::string(message);  // speaks of the words of a formula

  std::string out;
  while (!message.empty()) {
    size_t length = 1;
    if (in_name(message[0])) {
      length = size_t(std::ranges::find_if_not(message, in_name) - message.begin());
      out += keyword(out, message.substr(0, length), message.substr(length));
    } else if (const size_t end = message.find('}'); message[0] == '{' && end != message.npos) {
      length = end + 1;
      out += shape(message.substr(1, end - 1));
    } else {
      out += message[0];
    }
    message.remove_prefix(length);
  }
  return out;
}

}  // namespace qkv::python
