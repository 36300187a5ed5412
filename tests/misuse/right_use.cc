// expect: compiles
#include "qkv/attention.h"

struct Square {
  auto operator()(auto score, qkv::Site) const { return score * score; }
};
struct Even {
  bool sees(qkv::Site at) const { return at.key % 2 == 0; }
};
struct Total {
  double sum = 0;
  void see(double weight, qkv::Site) { sum += weight; }
  void join(const Total& later) { sum += later.sum; }
};

void use() {
  qkv::Attention a;
  a.visible(Even{}).score(Square{});
  Total total;
  qkv::observe(a, {}, {}, {total});
}
