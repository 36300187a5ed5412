// Text that came from a file or the command line, on its way to a terminal.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace qkv::cli {

/// Nothing in it can act on a terminal: control and format characters, line separators, unassigned and private code points
/// become \n, \x1b or \u{202e}; bytes that are no UTF-8 become \xff; spaces at either end become ␣ (a token " the" differs
/// from "the"). Everything else stays, also joiners inside emoji.
std::string safe_text(std::string_view text);

/// As safe_text, but all spaces stay: for messages.
std::string safe_line(std::string_view text);

/// Columns on a terminal: wide characters count 2, combining marks 0, an emoji sequence 2. Of safe text.
int display_width(std::string_view text);

/// What a person calls a character: letters with their marks, whole emoji sequences.
std::vector<std::string> graphemes(std::string_view text);

/// Exactly `width` columns: filled with spaces, or cut with "…" ('~' in `ascii`).
enum class Side : unsigned char { kLeft, kRight };
std::string fit(std::string_view text, int width, Side text_at, bool ascii);

}  // namespace qkv::cli
