#include "qkv/rules.h"

namespace qkv::cli {

std::vector<std::string> rule_names(const Attention& a) {
  std::vector<std::string> names = {"visible", "no such key (past its length)"};
  for (const auto& pattern : a.patterns()) names.push_back(pattern->about().text);
  for (const auto& score : a.scores()) {
    if (score->hides()) names.push_back(score->about().text + " (-inf)");
  }
  return names;
}

}  // namespace qkv::cli
