#include "autograd/pool.h"

#include <algorithm>
#include <bit>
#include <new>

namespace qkv::nn::detail {
namespace {

constexpr std::align_val_t kLine{64};

size_t rounded(size_t bytes) {
  const size_t step = std::max<size_t>(64, std::bit_floor(bytes) / 8);
  return std::max<size_t>(step, (bytes + step - 1) / step * step);
}

}  // namespace

std::byte* Pool::take(size_t bytes) {
  const size_t size = rounded(bytes);
  auto& blocks = free_[size];
  blocks.reserve(blocks.size() + 1);  // so that coming back never throws
  std::byte* data;
  if (blocks.empty()) {
    data = static_cast<std::byte*>(::operator new(size, kLine));
  } else {
    data = blocks.back();
    blocks.pop_back();
  }
  used_ += size;
  peak_ = std::max(peak_, used_);
  return data;
}

void Pool::give_back(std::byte* data, size_t bytes) {
  const size_t size = rounded(bytes);
  used_ -= size;
  free_[size].push_back(data);
}

Pool::~Pool() {
  for (const auto& [size, blocks] : free_)
    for (std::byte* data : blocks) ::operator delete(data, kLine);
}

}  // namespace qkv::nn::detail
