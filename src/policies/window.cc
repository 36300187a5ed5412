#include "core/format.h"
#include "qkv/policies.h"

namespace qkv {

std::shared_ptr<const passes::Pattern> adapt_pattern(Window p) {
  if (p.left < -1 || p.right < -1)
    option_error("window: left {} and right {}, expected distances of 0 and more, or -1 for no limit", p.left, p.right);
  return std::make_shared<detail::PatternOf<Window>>(p);
}

}  // namespace qkv
