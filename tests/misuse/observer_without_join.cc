// expect: qkv: an observer needs `void join(const Self& later)`
#include "qkv/attention.h"

struct Total {
  double sum = 0;
  void see(double weight, qkv::Site) { sum += weight; }
};

void use() {
  Total total;
  qkv::observe({}, {}, {}, {total});
}
