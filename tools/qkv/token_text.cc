#include "qkv/token_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::cli {

namespace {

struct CodePoint {
  utf8proc_int32_t value;  ///< -1: no UTF-8
  size_t bytes;
};

CodePoint code_point(std::string_view text) {
  utf8proc_int32_t value = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const utf8proc_ssize_t n = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size()), &value);
  return n > 0 ? CodePoint{value, static_cast<size_t>(n)} : CodePoint{-1, 1};
}

/// Byte-level: the printable characters of Latin-1 stand for their own byte, the 68 other bytes follow from 256 on in order
/// (GPT-2's encoder.py, bytes_to_unicode).
bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}
constexpr int kOthers = 68;

std::array<char, kOthers> other_bytes() {
  std::array<char, kOthers> bytes{};
  size_t n = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (!stands_for_itself(byte)) bytes[n++] = static_cast<char>(byte);
  }
  return bytes;
}

std::string byte_level(std::string_view token) {
  static const std::array<char, kOthers> kOther = other_bytes();
  std::string bytes;
  while (!token.empty()) {
    const CodePoint c = code_point(token);
    if (c.value >= 0 && c.value < 256 && stands_for_itself(c.value)) bytes += static_cast<char>(c.value);
    else if (c.value >= 256 && c.value < 256 + kOthers) bytes += kOther[static_cast<size_t>(c.value - 256)];
    else bytes += token.substr(0, c.bytes);  // not of the alphabet: it can only mean itself
    token.remove_prefix(c.bytes);
  }
  return bytes;
}

std::string metaspace(std::string_view token) {
  constexpr std::string_view kSpace = "▁";
  unsigned byte = 0;
  if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
      std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr == token.data() + 5)
    return {static_cast<char>(byte)};
  std::string text;
  for (size_t at = 0; at < token.size();) {
    const bool space = token.substr(at).starts_with(kSpace);
    text += space ? ' ' : token[at];
    at += space ? kSpace.size() : 1;
  }
  return text;
}

std::string shown(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const CodePoint c = code_point(bytes);
    text += c.value >= 0 ? std::string(bytes.substr(0, c.bytes))
                         : fmt::format("⟨{:02x}⟩", static_cast<unsigned char>(bytes.front()));
    bytes.remove_prefix(c.bytes);
  }
  return text;
}

std::string bytes_of(const std::vector<std::string>& tokens, const std::vector<bool>& plain, size_t n,
                     TokenScheme scheme) {
  return n < plain.size() && plain[n] ? tokens[n] : token_bytes(tokens[n], scheme);
}

/// For every byte of the text the number of its character, and one more for the end.
std::vector<int64_t> characters_of_bytes(std::string_view text) {
  std::vector<int64_t> characters;
  int64_t number = 0;
  while (!text.empty()) {
    const CodePoint c = code_point(text);
    characters.insert(characters.end(), c.bytes, number++);
    text.remove_prefix(c.bytes);
  }
  characters.push_back(number);
  return characters;
}

}  // namespace

std::string token_bytes(std::string_view token, TokenScheme scheme) {
  return scheme == TokenScheme::kByteLevel ? byte_level(token) : metaspace(token);
}

std::vector<std::string> display_labels(const std::vector<std::string>& tokens, const std::vector<bool>& plain,
                                        TokenScheme scheme) {
  std::vector<std::string> labels;
  for (size_t n = 0; n < tokens.size(); ++n) labels.push_back(shown(bytes_of(tokens, plain, n, scheme)));
  return labels;
}

std::string display_text(const std::vector<std::string>& tokens, const std::vector<bool>& plain, TokenScheme scheme) {
  std::string bytes;
  for (size_t n = 0; n < tokens.size(); ++n) bytes += bytes_of(tokens, plain, n, scheme);
  return shown(bytes);
}

std::vector<std::pair<int64_t, int64_t>> character_ranges(std::string_view text,
                                                          const std::vector<std::string>& tokens) {
  const std::vector<int64_t> characters = characters_of_bytes(text);
  std::vector<std::pair<int64_t, int64_t>> ranges;
  size_t at = 0;
  for (const std::string& token : tokens) {
    std::string bytes = token_bytes(token, TokenScheme::kByteLevel);
    if (ranges.empty() && bytes.starts_with(' ') && !text.starts_with(' ')) bytes.erase(0, 1);
    if (text.substr(at, bytes.size()) != bytes)
      throw OptionError(
          fmt::format("character_ranges: token {} ('{}') is not what the text goes on with at byte {}; give the "
                      "text that the tokens were made from",
                      ranges.size(), token, at));
    const size_t end = at + bytes.size();
    ranges.emplace_back(characters[at], end == at ? characters[at] : characters[end - 1] + 1);
    at = end;
  }
  if (at != text.size())
    throw OptionError(
        fmt::format("character_ranges: the tokens end at byte {} of {}; give all of them", at, text.size()));
  return ranges;
}

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

AxisLabels axis_labels(const std::vector<std::string>& tokens, int64_t rows, int64_t columns) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (columns != count || rows < 0 || rows > count) {
    throw ShapeError(fmt::format(
        "axis_labels: {} rows and {} columns cannot belong to {} tokens; expected a column for each and at most as many rows",
        rows, columns, count));
  }
  return {{tokens.end() - rows, tokens.end()}, tokens};
}

}  // namespace qkv::cli
