// expect: qkv: a score modifier needs `auto operator()(auto score, qkv::Site at) const`
#include "qkv/attention.h"

struct Named {
  auto modify(auto score, qkv::Site) const { return score; }
};

void use() { qkv::Attention{}.score(Named{}); }
