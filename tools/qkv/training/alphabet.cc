#include "qkv/training/alphabet.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::cli {
namespace {

/// Calls f(code point, byte) for every character. Throws FileError.
template <class F> void for_characters(std::string_view text, const std::string& file, const F& f) {
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t character = 0;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                         utf8proc_ssize_t(text.size() - at), &character);
    if (length <= 0)
      throw FileError(
          fmt::format("{} is no UTF-8 text: byte {} (0x{:02x}) begins no character; convert it, or train on bytes",
                      file, at, static_cast<unsigned char>(text[at])));
    f(int32_t(character), at);
    at += size_t(length);
  }
}

std::string utf8(int32_t character) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto length = utf8proc_encode_char(character, bytes.data());
  return {reinterpret_cast<const char*>(bytes.data()), size_t(std::max<utf8proc_ssize_t>(0, length))};
}

}  // namespace

void Alphabet::add(int32_t character) {
  numbers_.emplace(character, int32_t(characters_.size()));
  characters_.push_back(character);
}

Alphabet Alphabet::bytes() {
  Alphabet a;
  a.is_bytes_ = true;
  return a;
}

Alphabet Alphabet::of(std::string_view text, const std::string& file) {
  std::set<int32_t> seen;
  for_characters(text, file, [&](int32_t character, size_t) { seen.insert(character); });
  Alphabet a;
  for (const int32_t character : seen) a.add(character);
  return a;
}

nlohmann::json Alphabet::json() const {
  if (is_bytes_) return "bytes";
  std::string text;
  for (const int32_t character : characters_) text += utf8(character);
  return {{"characters", text}};
}

Alphabet Alphabet::from(const nlohmann::json& json) {
  if (json == "bytes") return bytes();
  if (!json.is_object() || !json.contains("characters") || !json["characters"].is_string())
    throw FileError("the model has no alphabet; it is no text model, or damaged");
  return of(json["characters"].get<std::string>(), "the model's alphabet");
}

std::vector<int32_t> Alphabet::encode(std::string_view text, const std::string& file) const {
  std::vector<int32_t> tokens;
  if (is_bytes_) {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  for_characters(text, file, [&](int32_t character, size_t at) {
    const auto number = numbers_.find(character);
    if (number == numbers_.end())
      throw FileError(fmt::format("{} has the character U+{:04X} at byte {}, which the model does not know", file,
                                  uint32_t(character), at));
    tokens.push_back(number->second);
  });
  return tokens;
}

std::string Alphabet::decode(int32_t token) const {
  if (token < 0 || token >= size())
    throw OptionError(fmt::format("token {} is not of the {} that there are", token, size()));
  return is_bytes_ ? std::string(1, char(token)) : utf8(characters_[size_t(token)]);
}

}  // namespace qkv::cli
