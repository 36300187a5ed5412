#include "qkv/version.h"

namespace qkv {

const char* version() { return QKV_VERSION_STRING; }

}  // namespace qkv
