// How messages are built: {fmt}, in the sources of the library only, never in its public headers.
#pragma once
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include <utility>

#include "qkv/error.h"
#include "qkv/view.h"

namespace qkv {

/// Throws ShapeError with this text. Wanted in it: function, argument, expected, got, one thing to do.
template <class... A> [[noreturn]] void shape_error(fmt::format_string<A...> text, A&&... values) {
  throw ShapeError(fmt::format(text, std::forward<A>(values)...));
}
/// The same for OptionError.
template <class... A> [[noreturn]] void option_error(fmt::format_string<A...> text, A&&... values) {
  throw OptionError(fmt::format(text, std::forward<A>(values)...));
}
/// The same for DtypeError.
template <class... A> [[noreturn]] void dtype_error(fmt::format_string<A...> text, A&&... values) {
  throw DtypeError(fmt::format(text, std::forward<A>(values)...));
}

}  // namespace qkv

/// A shape is printed as "{2, 8, 128, 64}", an element type by its name.
template <> struct fmt::formatter<qkv::Layout> : fmt::formatter<std::string> {
  template <class Context> auto format(const qkv::Layout& layout, Context& context) const {
    return fmt::formatter<std::string>::format(qkv::shape_text(layout), context);
  }
};
template <class T> struct fmt::formatter<qkv::View<T>> : fmt::formatter<qkv::Layout> {};
template <> struct fmt::formatter<qkv::DType> : fmt::formatter<const char*> {
  template <class Context> auto format(qkv::DType type, Context& context) const {
    return fmt::formatter<const char*>::format(qkv::name(type), context);
  }
};
