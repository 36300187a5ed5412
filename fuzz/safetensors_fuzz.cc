// Any bytes as a .safetensors: every tensor is an array and, where it may be one, a view of the same bytes, or FileError.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "qkv/error.h"
#include "qkv/io.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("fuzz.safetensors", 0);
  if (file < 0 || ::ftruncate(file, 0) != 0 || ::pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  try {
    const qkv::Safetensors tensors("/proc/self/fd/" + std::to_string(file));
    for (const std::string& name : tensors.names()) {
      try {
        const qkv::Array array = tensors.read(name);
        if (array.shape().size() > size_t{qkv::kMaxRank}) continue;
        const qkv::View<const void> view = tensors.view(name);
        if (view && std::memcmp(view.data, array.data(), array.bytes()) != 0) std::abort();
      } catch (const qkv::FileError&) {}
    }
  } catch (const qkv::FileError&) {}
  return 0;
}
