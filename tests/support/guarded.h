// Tensors with unreadable memory right behind their last element, or right before their first.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "tests/support/tensor.h"

namespace qkv::testing {

enum class Guard { kBehind, kBefore };

/// `bytes` of memory that end where an unreadable page begins, or begin where one ends. Touching that page kills the test.
class GuardedMemory {
 public:
  GuardedMemory(size_t bytes, Guard guard) {
    const auto page = size_t(sysconf(_SC_PAGESIZE));
    const size_t room = (bytes + page - 1) / page * page;
    size_ = room + page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) throw std::runtime_error("GuardedMemory: mmap failed");
    mprotect(guard == Guard::kBehind ? base_ + room : base_, page, PROT_NONE);
    data_ = guard == Guard::kBehind ? base_ + room - bytes : base_ + page;
  }
  ~GuardedMemory() { munmap(base_, size_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  char* data() const { return data_; }

 private:
  char* base_;
  char* data_;
  size_t size_;
};

/// A copy of a tensor in guarded memory, in the order of its axes; of axis 0 only the first `readable` indices exist, the
/// view claims all of them.
class GuardedTensor {
 public:
  GuardedTensor(const Tensor& t, Guard guard) : GuardedTensor(t, guard, t.layout().shape[0]) {}
  GuardedTensor(const Tensor& t, Guard guard, int64_t readable)
      : element_(size_of(t.type())),
        layout_(std::span(t.layout().shape.data(), size_t(t.layout().rank))),
        type_(t.type()),
        memory_(size_t(readable * layout_.strides[0]) * element_, guard) {
    const View<const void> from = t.view();
    t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
      if (a >= readable) return;
      std::memcpy(memory_.data() + size_t(layout_.offset(a, b, c, d)) * element_,
                  static_cast<const char*>(from.data) + from.offset(a, b, c, d) * int64_t(element_), element_);
    });
  }
  View<void> view() const { return {memory_.data(), type_, layout_}; }

 private:
  size_t element_;
  Layout layout_;
  DType type_;
  GuardedMemory memory_;
};

}  // namespace qkv::testing
