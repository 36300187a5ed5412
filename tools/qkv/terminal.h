// What can be shown where: colours, characters, size.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace qkv::cli {

enum class ColorWhen : uint8_t { kAuto, kAlways, kNever };
enum class ColorDepth : uint8_t { kNone, k256, kTrue };

struct Screen {
  ColorDepth colors = ColorDepth::kNone;
  bool unicode = false;  ///< block elements may be used
  int columns = 80;
  int lines = 24;
  bool terminal = false;  ///< a person looks on, so that sentences are folded and tables made to fit
};

/// What the process stands in; a value, so that tests can make one.
struct Surroundings {
  std::function<const char*(const char*)> variable;  ///< getenv
  bool terminal = false;
  int columns = 0, lines = 0;  ///< of the terminal; 0: unknown
};

/// Colours: --color before NO_COLOR before what the terminal can do. Size: COLUMNS and LINES before the terminal's, else
/// 100 x 50. Block elements only where the locale is UTF-8.
Screen screen_of(const Surroundings&, ColorWhen);

/// The same of standard output, and without colours of standard error.
Screen screen_of_stdout(ColorWhen);
Screen screen_of_stderr();

/// Whether a line of standard error can be drawn again and again: on a terminal that is not dumb.
bool stderr_redraws();

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
  friend bool operator==(const Rgb&, const Rgb&) = default;
};

/// The escape sequence that sets a colour; empty without colours.
std::string foreground(Rgb, ColorDepth);
std::string background(Rgb, ColorDepth);
std::string bold(ColorDepth);
std::string faint(ColorDepth);
std::string plain(ColorDepth);  ///< ends all of them

/// The nearest of the 216 colours of the cube and the 24 greys.
int nearest_of_256(Rgb);

}  // namespace qkv::cli
