// Any bytes as a .safetensors: every tensor is an array and, where it may be one, a view of the same bytes, or FileError.
#include <cstdlib>
#include <cstring>
#include <string>

#include "file_of_bytes.h"
#include "qkv/error.h"
#include "qkv/io.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const qkv::Safetensors tensors(file_of_bytes(data, size));
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
