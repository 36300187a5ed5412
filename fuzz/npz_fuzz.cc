// Any bytes as an .npz: every entry is an array or FileError.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "qkv/error.h"
#include "qkv/io.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("fuzz.npz", 0);
  if (file < 0 || ::ftruncate(file, 0) != 0 || ::pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  try {
    const qkv::Npz npz("/proc/self/fd/" + std::to_string(file), {.entry_bytes = uint64_t{1} << 24});
    for (const std::string& name : npz.names()) {
      try {
        npz.read(name);
      } catch (const qkv::FileError&) {}
    }
  } catch (const qkv::FileError&) {}
  return 0;
}
