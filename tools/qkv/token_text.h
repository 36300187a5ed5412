// Tokens as tokenizers write them, as text for people.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qkv::cli {

/// How a vocabulary writes what is no letter. Byte-level (GPT-2 and after): every byte is a printable character, Ġ a space, Ċ a
/// new line. Metaspace (SentencePiece): ▁ is a space, <0xE4> a byte.
enum class TokenScheme : uint8_t { kByteLevel, kMetaspace };

/// The bytes that a token stands for; half a character is possible.
std::string token_bytes(std::string_view token, TokenScheme);

/// One label a token, always UTF-8: bytes that make no character are shown as ⟨e2⟩. `plain` tokens (special ones, added ones)
/// stay as they are; it may be shorter than `tokens`.
std::vector<std::string> display_labels(const std::vector<std::string>& tokens, const std::vector<bool>& plain,
                                        TokenScheme);
/// The text of all of them: a character whose bytes lie in several tokens is whole here.
std::string display_text(const std::vector<std::string>& tokens, const std::vector<bool>& plain, TokenScheme);

/// Which characters (code points) of `text` each byte-level token covers, [begin, end): all tokens of one character have its
/// range. A space that the tokenizer put in front of the text covers nothing. Throws OptionError where the tokens are not those
/// of the text.
std::vector<std::pair<int64_t, int64_t>> character_ranges(std::string_view text,
                                                          const std::vector<std::string>& tokens);

/// With & < > " written so that they are text in HTML and SVG.
std::string html_text(std::string_view text);

/// Labels of weights with a column for each token and a row for each of the last tokens, as a cache leaves them. Throws
/// ShapeError where there are not as many columns as tokens or more rows.
struct AxisLabels {
  std::vector<std::string> rows, columns;
};
AxisLabels axis_labels(const std::vector<std::string>& tokens, int64_t rows, int64_t columns);

}  // namespace qkv::cli
