// What an error says.
#pragma once
#include <string>

namespace qkv::testing {

/// The text with which an action throws E.
template <class E, class F> std::string message_of(F&& action) {
  try {
    action();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace qkv::testing
