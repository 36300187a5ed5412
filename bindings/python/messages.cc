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
};
constexpr std::string_view kFunctions[] = {"forward", "backward", "observe", "merge_partials", "merge_partials_backward",
                                           "explain_path", "keep_mask_of", "find_tensor", "Attention::parse", "ThreadPool"};

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// "{2, 4}" as "(2, 4)" and "{4}" as "(4,)".
std::string shape(std::string_view text) {
  const bool is_single = !text.empty() && text.find(',') == text.npos;
  return "(" + std::string(text) + (is_single ? ",)" : ")");
}

}  // namespace

std::string for_callers(std::string_view message) {
  const size_t colon = std::min(message.find(": "), message.size());
  const std::string_view function = message.substr(0, colon);
  if (std::ranges::find(kFunctions, function) != std::end(kFunctions)) message.remove_prefix(colon + 2);
  if (function == "Attention::parse") return std::string(message);  // speaks of the words of a formula

  std::string out;
  while (!message.empty()) {
    size_t length = 1;
    if (in_name(message[0])) {
      length = size_t(std::ranges::find_if_not(message, in_name) - message.begin());
      const std::string_view word = message.substr(0, length);
      const auto* known = std::ranges::find(kNames, word, [](const auto& n) { return n.first; });
      out += known == std::end(kNames) ? word : known->second;
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
