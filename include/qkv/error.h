// What qkv throws. A message names the function, the argument, what was expected, what came, and one thing to do.
#pragma once
#include <stdexcept>

#include "qkv/export.h"

namespace qkv {

/// Everything that the library throws on purpose.
struct QKV_EXPORT Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The caller passed something that cannot be meant.
struct QKV_EXPORT ArgumentError : Error {
  using Error::Error;
};
/// Sizes or strides that do not fit together.
struct QKV_EXPORT ShapeError : ArgumentError {
  using ArgumentError::ArgumentError;
};
/// An option out of its range, options that exclude each other, text that does not parse, a tensor missing or not named.
struct QKV_EXPORT OptionError : ArgumentError {
  using ArgumentError::ArgumentError;
};
/// An element type that has no meaning here.
struct QKV_EXPORT DtypeError : ArgumentError {
  using ArgumentError::ArgumentError;
};
/// A file that is missing, damaged or not what it claims to be.
struct QKV_EXPORT FileError : Error {
  using Error::Error;
};
/// Legal, but not in this build or on this machine.
struct QKV_EXPORT Unsupported : Error {
  using Error::Error;
};
/// The caller's stop token asked for it.
struct QKV_EXPORT Cancelled : Error {
  using Error::Error;
};

}  // namespace qkv
