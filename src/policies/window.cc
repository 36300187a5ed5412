#include "core/format.h"
#include "qkv/policies.h"

namespace qkv {

std::shared_ptr<const passes::Pattern> adapt_pattern(Window p) {
  return std::make_shared<detail::PatternOf<Window>>(p);
}

}  // namespace qkv
