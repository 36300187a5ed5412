// expect: qkv: a pattern needs `qkv::KeyRange keys(qkv::Row) const`
#include "qkv/attention.h"

struct Nothing {
  bool visible(int, int) const { return true; }
};

void use() { qkv::Attention{}.visible(Nothing{}); }
