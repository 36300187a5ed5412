// Numbers to colours.
#pragma once
#include "qkv/terminal.h"

namespace qkv::cli {

/// viridis at t in [0, 1], clamped: dark blue to bright yellow in steps that look equal, also without red or green, also in
/// grey. By Nathaniel Smith and Stefan van der Walt, 2015, in the public domain (CC0).
Rgb viridis(double t);

/// Black or white, whichever is easier to read on this colour.
Rgb readable_on(Rgb background);

inline constexpr Rgb kNotANumber{255, 0, 255};
inline constexpr Rgb kHidden{72, 72, 72};

}  // namespace qkv::cli
