// Any bytes as an .npy: an array, whose memory is then read, or FileError.
#include "io/npy.h"
#include "qkv/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qkv::io::MemorySource source(std::as_bytes(std::span(data, size)));
  try {
    const qkv::Array array = qkv::io::parse_npy(source, "fuzz.npy", uint64_t{1} << 30);
    if (array.shape().size() <= size_t{qkv::kMaxRank}) (void)qkv::io::npy_image(array.view());
  } catch (const qkv::FileError&) {}
  return 0;
}
