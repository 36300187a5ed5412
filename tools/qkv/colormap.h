// Numbers to colours: one table for terminals, pictures and pages.
#pragma once
#include "qkv/terminal.h"

namespace qkv::cli {

inline constexpr int kMapSize = 256;

/// cividis at t in [0, 1], clamped to its nearest entry: dark blue to yellow in steps that look equal, also without red or
/// green, also in grey. cividis(n / 255.0) is entry n. Nunez, Anderton, Renslow 2018, PLOS ONE 13(7).
Rgb cividis(double t);

/// For what has a middle, t in [-1, 1], clamped: blue below, almost white at 0, orange above.
Rgb diverging(double t);

/// Black or white, whichever is easier to read on this colour.
Rgb readable_on(Rgb background);

inline constexpr Rgb kNotANumber{255, 0, 255};
inline constexpr Rgb kHidden{72, 72, 72};

}  // namespace qkv::cli
