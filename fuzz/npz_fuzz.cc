// Any bytes as an .npz: every entry is an array or FileError.
#include <string>

#include "file_of_bytes.h"
#include "qkv/error.h"
#include "qkv/io.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const qkv::Npz npz(file_of_bytes(data, size), {.entry_bytes = uint64_t{1} << 24});
    for (const std::string& name : npz.names()) {
      try {
        npz.read(name);
      } catch (const qkv::FileError&) {}
    }
  } catch (const qkv::FileError&) {}
  return 0;
}
