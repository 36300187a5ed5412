// expect: qkv: a modifier that reads parameters lists them: `auto parameters() { return std::tie(table); }`
#include "qkv/attention.h"

struct Forgetful {
  qkv::Parameter table{"table"};
  auto operator()(auto score, qkv::Site at, auto& read) const { return score + read(table, at.head); }
};

void use() { qkv::Attention{}.score(Forgetful{}); }
