#include "qkv/say.h"

#include <fmt/format.h>

#include <cstdio>

#include "qkv/labels.h"

namespace qkv::cli {

void say(std::string_view who, std::string_view message) {
  const std::string line = fmt::format("{}: {}\n", who, safe_line(message));
  if (std::fwrite(line.data(), 1, line.size(), stderr) == line.size()) std::fflush(stderr);
}

}  // namespace qkv::cli
