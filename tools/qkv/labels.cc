#include "qkv/labels.h"

#include <utf8proc.h>

#include <algorithm>

#include <fmt/format.h>

namespace qkv::cli {

namespace {

constexpr utf8proc_int32_t kJoiner = 0x200D, kEmojiStyle = 0xFE0F;

/// The code point at `at` and its length; -1 and 1 where the bytes are no UTF-8.
struct CodePoint {
  utf8proc_int32_t value = -1;
  size_t length = 1;
};
CodePoint code_point(std::string_view text, size_t at) {
  CodePoint c;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
  const utf8proc_ssize_t n = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &c.value);
  if (n <= 0) c.value = -1;
  else c.length = static_cast<size_t>(n);
  return c;
}

bool is_harmless(utf8proc_int32_t c) {
  if (c == kJoiner) return true;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
  }
}

std::string escaped(utf8proc_int32_t c) {
  switch (c) {
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return c < 0x100 ? fmt::format("\\x{:02x}", c) : fmt::format("\\u{{{:x}}}", c);
  }
}

int width_of(utf8proc_int32_t c) { return std::max(0, utf8proc_charwidth(c)); }

bool is_flag_half(utf8proc_int32_t c) { return c >= 0x1F1E6 && c <= 0x1F1FF; }

/// Calls see(first byte, bytes, columns) for every grapheme.
template <class F> void each_grapheme(std::string_view text, F see) {
  size_t start = 0;
  int width = 0;
  utf8proc_int32_t before = -1, state = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    if (at > 0 && (c.value < 0 || before < 0 || utf8proc_grapheme_break_stateful(before, c.value, &state))) {
      see(start, at - start, width);
      start = at;
      width = 0;
      state = 0;
    }
    const bool second_half_of_flag = is_flag_half(c.value) && at > start;
    const int own = c.value < 0 ? 1 : c.value == kEmojiStyle || second_half_of_flag ? 2 : width_of(c.value);
    width = std::max(width, own);
    before = c.value;
    at += c.length;
  }
  if (start < text.size()) see(start, text.size() - start, width);
}

}  // namespace

std::string safe_line(std::string_view text) {
  std::string safe;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    if (c.value < 0) safe += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    else if (is_harmless(c.value)) safe += text.substr(at, c.length);
    else safe += escaped(c.value);
    at += c.length;
  }
  return safe;
}

std::string safe_text(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of(' '), text.size());
  const size_t last = first == text.size() ? first : text.find_last_not_of(' ') + 1;
  std::string safe;
  for (size_t n = 0; n < first; ++n) safe += "␣";
  safe += safe_line(text.substr(first, last - first));
  for (size_t n = last; n < text.size(); ++n) safe += "␣";
  return safe;
}

int display_width(std::string_view text) {
  int sum = 0;
  each_grapheme(text, [&](size_t, size_t, int width) { sum += width; });
  return sum;
}

std::vector<std::string> graphemes(std::string_view text) {
  std::vector<std::string> parts;
  each_grapheme(text, [&](size_t first, size_t bytes, int) { parts.emplace_back(text.substr(first, bytes)); });
  return parts;
}

std::string fit(std::string_view text, int width, Side text_at, bool ascii) {
  std::string kept(text);
  int used = display_width(text);
  if (used > width) {
    size_t bytes = 0;
    used = 0;
    bool full = false;
    each_grapheme(text, [&](size_t first, size_t length, int columns) {
      full = full || used + columns > width - 1;
      if (full) return;
      used += columns;
      bytes = first + length;
    });
    kept = std::string(text.substr(0, bytes)) + (width < 1 ? "" : ascii ? "~" : "…");
    used += width < 1 ? 0 : 1;
  }
  const std::string space(static_cast<size_t>(std::max(0, width - used)), ' ');
  return text_at == Side::kLeft ? kept + space : space + kept;
}

}  // namespace qkv::cli
