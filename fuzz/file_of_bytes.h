// Bytes as a file, for readers that open one by its name.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

/// The name of a file in memory that holds these bytes until the next call.
inline std::string file_of_bytes(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("fuzz", 0);
  if (file < 0 || ::ftruncate(file, 0) != 0 || ::pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  return "/proc/self/fd/" + std::to_string(file);
}
