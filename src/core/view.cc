#include "qkv/view.h"

#include "core/format.h"

namespace qkv {
namespace {

struct TypeFacts {
  const char* name;
  size_t bytes;
};

/// In the order of DType.
constexpr TypeFacts kTypes[] = {{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"bool", 1},
                                {"int8", 1},    {"int16", 2},   {"int32", 4},   {"int64", 8},    {"uint8", 1},
                                {"uint16", 2},  {"uint32", 4},  {"uint64", 8}};
static_assert(std::size(kTypes) == size_t(DType::kUInt64) + 1);

int checked_rank(size_t sizes) {
  if (sizes > size_t(kMaxRank)) {
    shape_error("View: the shape has {} sizes, but a tensor here has at most {}; merge axes or drop those of size 1",
                sizes, kMaxRank);
  }
  return int(sizes);
}

int checked_rank(size_t sizes, size_t steps) {
  if (sizes != steps) {
    shape_error("View: the shape has {} sizes, but there are {} strides; give one stride for every axis", sizes, steps);
  }
  return checked_rank(sizes);
}

}  // namespace

const char* name(DType type) { return kTypes[size_t(type)].name; }

size_t size_of(DType type) { return kTypes[size_t(type)].bytes; }

bool is_floating(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat64 || type == DType::kFloat16 || type == DType::kBFloat16;
}

Layout::Layout(std::span<const int64_t> sizes) : rank(checked_rank(sizes.size())) {
  int64_t step = 1;
  for (int axis = rank; axis-- > 0; step *= shape[axis]) {
    shape[axis] = sizes[axis];
    strides[axis] = step;
  }
}

Layout::Layout(std::span<const int64_t> sizes, std::span<const int64_t> steps)
    : rank(checked_rank(sizes.size(), steps.size())) {
  for (int axis = 0; axis < rank; ++axis) {
    shape[axis] = sizes[axis];
    strides[axis] = steps[axis];
  }
}

std::string shape_text(const Layout& layout) {
  std::string text = "{";
  for (int axis = 0; axis < layout.rank; ++axis) text += fmt::format("{}{}", axis ? ", " : "", layout.shape[axis]);
  return text + "}";
}

}  // namespace qkv
