#include "core/workspace.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace qkv {

void CallArena::reset() {
  while (!owned_.empty()) {
    const auto [object, destroy] = owned_.back();
    owned_.pop_back();
    destroy(object);
  }
  block_ = used_ = 0;
}

void* CallArena::allocate(size_t bytes, size_t alignment) {
  for (; block_ < blocks_.size(); ++block_, used_ = 0) {
    const size_t at = size_t(round_up(int64_t(used_), int64_t(alignment)));
    if (at + bytes > blocks_[block_]->bytes()) continue;
    used_ = at + bytes;
    return static_cast<std::byte*>(blocks_[block_]->reserve(0)) + at;
  }
  blocks_.push_back(std::make_unique<AlignedBuffer>());
  block_ = blocks_.size() - 1;
  used_ = bytes;
  return blocks_.back()->reserve(std::max<size_t>(bytes, 16 << 10));
}

size_t CallArena::bytes() const {
  size_t sum = 0;
  for (const auto& b : blocks_) sum += b->bytes();
  return sum;
}

void Workspace::Impl::prepare_leases(int leases, size_t bytes) {
  const std::lock_guard lock(mutex_);
  while (free_.size() < size_t(leases)) free_.push_back(std::make_unique<AlignedBuffer>());
  for (auto& buffer : free_) buffer->reserve(bytes);
}

size_t Workspace::Impl::bytes() const {
  const std::lock_guard lock(mutex_);
  size_t sum = arena.bytes() + call.bytes() + row_sums.bytes();
  for (const auto& buffer : free_) sum += buffer->bytes();
  return sum;
}

Workspace::Workspace() : impl_(std::make_unique<Impl>()) {}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
size_t Workspace::bytes() const { return impl_->bytes(); }

}  // namespace qkv
