#include "qkv/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

namespace qkv::cli {

namespace {

std::string_view text_of(const Surroundings& s, const char* name) {
  const char* value = s.variable ? s.variable(name) : nullptr;
  return value != nullptr ? value : "";
}

/// Names of terminals that have 256 colours and do not say so in their name.
constexpr std::string_view kNamesWith256[] = {"xterm",     "xterm-kitty", "xterm-ghostty", "screen",  "tmux",
                                              "alacritty", "foot",        "wezterm",       "contour", "mintty"};

/// What the terminal can do. One of 8 or 16 colours, as linux or vt100, gets none: they would not tell weights apart.
ColorDepth colors_of_terminal(std::string_view term, std::string_view colorterm) {
  if (colorterm == "truecolor" || colorterm == "24bit" || term.find("direct") != term.npos) return ColorDepth::kTrue;
  const bool named = std::ranges::find(kNamesWith256, term) != std::end(kNamesWith256);
  return named || term.find("256color") != term.npos ? ColorDepth::k256 : ColorDepth::kNone;
}

/// Knows no escape sequences, whatever else is said.
bool is_dumb(const Surroundings& s) { return text_of(s, "TERM").empty() || text_of(s, "TERM") == "dumb"; }

ColorDepth colors_of(const Surroundings& s, ColorWhen when) {
  const ColorDepth depth = colors_of_terminal(text_of(s, "TERM"), text_of(s, "COLORTERM"));
  switch (when) {
    case ColorWhen::kNever: return ColorDepth::kNone;
    case ColorWhen::kAlways: return std::max(depth, ColorDepth::k256);
    case ColorWhen::kAuto: break;
  }
  return s.terminal && !is_dumb(s) && text_of(s, "NO_COLOR").empty() ? depth : ColorDepth::kNone;
}

bool has_utf8(const Surroundings& s) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(text_of(s, name));
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != value.npos || value.find("utf8") != value.npos;
  }
  return false;
}

int size_of(const Surroundings& s, const char* name, int of_terminal, int otherwise) {
  const std::string_view text = text_of(s, name);
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  if (value > 0) return std::clamp(value, 20, 1000);
  return of_terminal > 0 ? std::clamp(of_terminal, 20, 1000) : otherwise;
}

Surroundings surroundings_of(int descriptor) {
  Surroundings s{[](const char* name) { return std::getenv(name); }, ::isatty(descriptor) == 1};
  winsize size{};
  if (s.terminal && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0) {
    s.columns = size.ws_col;
    s.lines = size.ws_row;
  }
  return s;
}

std::string color_sequence(Rgb c, ColorDepth depth, int kind) {
  switch (depth) {
    case ColorDepth::kTrue: return fmt::format("\x1b[{};2;{};{};{}m", kind, c.r, c.g, c.b);
    case ColorDepth::k256: return fmt::format("\x1b[{};5;{}m", kind, nearest_of_256(c));
    case ColorDepth::kNone: break;
  }
  return "";
}

std::string style_sequence(const char* code, ColorDepth depth) {
  return depth == ColorDepth::kNone ? "" : fmt::format("\x1b[{}m", code);
}

}  // namespace

Screen screen_of(const Surroundings& s, ColorWhen when) {
  return {colors_of(s, when), has_utf8(s), size_of(s, "COLUMNS", s.columns, 100), size_of(s, "LINES", s.lines, 50),
          s.terminal};
}

Screen screen_of_stderr() { return screen_of(surroundings_of(STDERR_FILENO), ColorWhen::kNever); }

Screen screen_of_stdout(ColorWhen when) { return screen_of(surroundings_of(STDOUT_FILENO), when); }

bool stderr_redraws() {
  return ::isatty(STDERR_FILENO) == 1 && !is_dumb({[](const char* name) { return std::getenv(name); }});
}

std::string foreground(Rgb c, ColorDepth depth) { return color_sequence(c, depth, 38); }
std::string background(Rgb c, ColorDepth depth) { return color_sequence(c, depth, 48); }
std::string bold(ColorDepth depth) { return style_sequence("1", depth); }
std::string faint(ColorDepth depth) { return style_sequence("2", depth); }
std::string plain(ColorDepth depth) { return style_sequence("0", depth); }

int nearest_of_256(Rgb c) {
  constexpr int kLevels[] = {0, 95, 135, 175, 215, 255};  // of the 6 x 6 x 6 cube, xterm's values
  const auto level = [&](int value) {
    int best = 0;
    for (int n = 1; n < 6; ++n) {
      if (std::abs(kLevels[n] - value) < std::abs(kLevels[best] - value)) best = n;
    }
    return best;
  };
  const auto distance = [&](int r, int g, int b) {
    return (r - c.r) * (r - c.r) + (g - c.g) * (g - c.g) + (b - c.b) * (b - c.b);
  };
  const int r = level(c.r), g = level(c.g), b = level(c.b);
  const int grey = std::clamp(((c.r + c.g + c.b) / 3 - 3) / 10, 0, 23), shade = 8 + 10 * grey;
  const bool cube = distance(kLevels[r], kLevels[g], kLevels[b]) <= distance(shade, shade, shade);
  return cube ? 16 + 36 * r + 6 * g + b : 232 + grey;
}

}  // namespace qkv::cli
