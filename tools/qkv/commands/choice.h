// Options that are one of a few words.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <string>
#include <utility>
#include <vector>

namespace qkv::cli {

/// `value` becomes what belongs to the word. Help and messages list the words in the order given.
template <class T, class V>
CLI::Option* add_choice(CLI::App& command, const std::string& name, V& value,
                        std::vector<std::pair<std::string, T>> words, const std::string& help) {
  std::vector<std::string> names;
  names.reserve(words.size());
  for (const auto& word : words) names.push_back(word.first);
  const auto understand = [&value, name, words, names](const std::string& text) {
    for (const auto& [word, meaning] : words) {
      if (word == text) return void(value = meaning);
    }
    throw CLI::ValidationError(name, fmt::format("expected {}, got '{}'", fmt::join(names, ", "), text));
  };
  return command.add_option_function<std::string>(name, understand, help)
      ->type_name(fmt::format("{}", fmt::join(names, "|")))
      ->trigger_on_parse();
}

/// For check(): a whole number of so much or more.
inline CLI::Validator at_least(long long least) {
  return {[least](std::string& text) {
            long long value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= least
                       ? std::string()
                       : fmt::format("expected a whole number of {} or more, got '{}'", least, text);
          },
          ""};
}
inline CLI::Validator not_negative() { return at_least(0); }

}  // namespace qkv::cli
