#include "qkv/policies.h"

namespace qkv {

std::shared_ptr<const passes::Pattern> adapt_pattern(Causal p) {
  return std::make_shared<detail::PatternOf<Causal>>(p);
}

}  // namespace qkv
