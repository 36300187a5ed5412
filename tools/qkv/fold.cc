#include "qkv/fold.h"

#include <algorithm>
#include <vector>

#include "qkv/labels.h"

namespace qkv::cli {

namespace {

constexpr char kEscape = '\x1b';

/// The bytes of the escape sequence at `at`, as in "\x1b[1m"; 0 where there is none.
size_t escape_at(std::string_view text, size_t at) {
  if (text[at] != kEscape) return 0;
  return std::min(text.find('m', at), text.size() - 1) + 1 - at;
}

int width_of(std::string_view text) {
  std::string visible;
  for (size_t at = 0; at < text.size();) {
    if (const size_t escape = escape_at(text, at)) at += escape;
    else visible += text[at++];
  }
  return display_width(visible);
}

/// Cut at each space that no background covers and that is not between `; two spaces have an empty word between them.
std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  size_t first = 0;
  bool covered = false, quoted = false;
  for (size_t at = 0; at < line.size();) {
    if (const size_t escape = escape_at(line, at)) {
      const std::string_view code = line.substr(at, escape);
      if (code == "\x1b[0m") covered = false;
      else if (code.starts_with("\x1b[48;")) covered = true;
      at += escape;
      continue;
    }
    if (line[at] == '`') quoted = !quoted;
    if (line[at] == ' ' && !covered && !quoted) {
      words.push_back(line.substr(first, at - first));
      first = at + 1;
    }
    ++at;
  }
  words.push_back(line.substr(first));
  return words;
}

std::string folded(std::string_view line, int columns) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const std::string margin(indent, ' ');
  std::string text = margin;
  int used = static_cast<int>(indent);
  size_t spaces = 0;  // before the next word
  for (const std::string_view word : words_of(line.substr(indent))) {
    const int width = width_of(word);
    if (width > 0 && used > static_cast<int>(indent) && used + static_cast<int>(spaces) + width > columns) {
      text += "\n" + margin;
      used = static_cast<int>(indent);
      spaces = 0;
    }
    if (!word.empty()) {
      text += std::string(spaces, ' ');
      text += word;
      used += static_cast<int>(spaces) + width;
      spaces = 0;
    }
    ++spaces;
  }
  return text;
}

}  // namespace

std::string fold(std::string_view text, const Screen& screen) {
  if (!screen.terminal) return std::string(text);
  std::string all;
  for (size_t first = 0; first < text.size();) {
    const size_t last = std::min(text.find('\n', first), text.size());
    const std::string_view line = text.substr(first, last - first);
    all += width_of(line) > screen.columns ? folded(line, screen.columns) : std::string(line);
    if (last < text.size()) all += '\n';
    first = last + 1;
  }
  return all;
}

}  // namespace qkv::cli
