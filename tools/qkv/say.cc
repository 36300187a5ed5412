#include "qkv/say.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "qkv/fold.h"
#include "qkv/labels.h"
#include "qkv/names.h"

namespace qkv::cli {

void say(std::string_view who, std::string_view message) {
  const std::string line = fold(fmt::format("{}: {}\n", who, safe_line(message)), screen_of_stderr());
  if (std::fwrite(line.data(), 1, line.size(), stderr) == line.size()) std::fflush(stderr);
}

std::string_view without_function(std::string_view message) {
  const size_t end = message.find(": ");
  if (end == message.npos || end == 0) return message;
  const std::string_view name = message.substr(0, end);
  const auto in_names = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == ':'; };
  return std::ranges::all_of(name, in_names) && !is_input(name) ? message.substr(end + 2) : message;
}

}  // namespace qkv::cli
