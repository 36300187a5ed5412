#include "io/c_order.h"

#include <cstring>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "core/contiguous.h"
#include "io/bytes.h"
#include "qkv/error.h"

namespace qkv::io {

namespace {

template <class T> void pack(View<const T> from, std::byte* to) {
  for (int64_t a = 0; a < from.shape[0]; ++a) {
    for (int64_t b = 0; b < from.shape[1]; ++b) {
      for (int64_t c = 0; c < from.shape[2]; ++c) {
        for (int64_t d = 0; d < from.shape[3]; ++d, to += sizeof(T)) std::memcpy(to, &from(a, b, c, d), sizeof(T));
      }
    }
  }
}

void pack_any(View<const void> from, std::byte* to) {
  switch (size_of(from.dtype)) {
    case 1: return pack(from.as<const uint8_t>(), to);
    case 2: return pack(from.as<const uint16_t>(), to);
    case 4: return pack(from.as<const uint32_t>(), to);
    default: return pack(from.as<const uint64_t>(), to);
  }
}

}  // namespace

CopyInOrder in_c_order(View<const void> tensor) {
  const size_t bytes = static_cast<size_t>(tensor.size()) * size_of(tensor.dtype);
  if (bytes == 0) return {};
  if (is_contiguous(tensor)) return {{static_cast<const std::byte*>(tensor.data), bytes}};
  CopyInOrder copy{{}, allocate(bytes)};
  pack_any(tensor, copy.packed.get());
  copy.data = {copy.packed.get(), bytes};
  return copy;
}

void check_names(const char* function, std::span<const NamedTensor> tensors) {
  std::set<std::string_view> seen;
  for (const NamedTensor& t : tensors) {
    if (t.name.empty())
      throw ArgumentError(fmt::format("{}: a tensor has no name; give each one, such as \"q\"", function));
    if (!t.view) throw ArgumentError(fmt::format("{}: tensor '{}' is absent (rank 0)", function, t.name));
    if (!seen.insert(t.name).second)
      throw ArgumentError(fmt::format("{}: the name '{}' is given twice; rename one", function, t.name));
  }
}

}  // namespace qkv::io
