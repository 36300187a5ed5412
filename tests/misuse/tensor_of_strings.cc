// expect: qkv: no tensor has this element type
#include <string>

#include "qkv/attention.h"

void use(qkv::View<std::string> words) { qkv::forward({}, {.query = words}, {}); }
