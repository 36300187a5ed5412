// Notes to the person who sits at the terminal.
#pragma once
#include <string_view>

namespace qkv::cli {

/// "qkv see: message" on one line of standard error, whatever the message holds (of a terminal, folded). Where that cannot be written (closed, a full
/// disk), nothing happens: the result counts, not the note.
void say(std::string_view who, std::string_view message);

/// A message of the library for people: without the function that begins it ("forward: query has ..."). Names of tensors stay.
std::string_view without_function(std::string_view message);

}  // namespace qkv::cli
