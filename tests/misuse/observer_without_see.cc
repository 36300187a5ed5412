// expect: qkv: an observer needs `void see(double weight, qkv::Site at)`
#include "qkv/attention.h"

struct Blind {
  void join(const Blind&) {}
};

void use() {
  Blind blind;
  qkv::observe({}, {}, {}, {blind});
}
