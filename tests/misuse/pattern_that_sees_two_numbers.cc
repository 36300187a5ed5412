// expect: or `bool sees(qkv::Site) const` (one pair), public and const
#include "qkv/attention.h"

struct Pairs {
  bool sees(int query, int key) const { return key <= query; }
};

void use() { qkv::Attention{}.visible(Pairs{}); }
