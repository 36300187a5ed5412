// expect: qkv: this score modifier takes float only and so has no derivative; write `auto operator()(auto score, ...)`
#include "qkv/attention.h"

struct OnlyFloat {
  float operator()(float score, qkv::Site) const { return score * score; }
};

void use() { qkv::Attention{}.score(OnlyFloat{}); }
