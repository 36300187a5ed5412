// What stands behind qkv::Workspace: memory that equal calls find again.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "qkv/executor.h"
#include "qkv/pass.h"

namespace qkv {

/// Memory on 64-byte lines that only grows. What it held is lost when it does.
class AlignedBuffer {
 public:
  void* reserve(size_t bytes) {
    if (bytes > bytes_) {
      data_.reset();
      bytes_ = 0;
      data_.reset(static_cast<std::byte*>(::operator new(bytes, kLine)));
      bytes_ = bytes;
    }
    return data_.get();
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kLine); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

/// Hands out parts of a buffer, each on a 64-byte line. With no buffer it only counts what would be needed, so that one
/// function both sizes and lays out.
class Carver {
 public:
  explicit Carver(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}
  template <class T> T* take(int64_t n) {
    const size_t at = used_;
    used_ += (size_t(n > 0 ? n : 0) * sizeof(T) + 63) / 64 * 64;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

/// Policies that have met their tensors, and small arrays of one call. Blocks never move, so pointers stay good.
class CallArena final : public passes::Arena {
 public:
  ~CallArena() override { reset(); }
  /// Destroys what the last call left; keeps the memory.
  void reset();
  size_t bytes() const;

  /// Leaves the arena empty, whatever happens.
  class Scope {
   public:
    explicit Scope(CallArena& arena) : arena_(arena) { arena_.reset(); }
    ~Scope() { arena_.reset(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CallArena& arena_;
  };

 protected:
  void* allocate(size_t bytes, size_t alignment) override;
  void own(void* object, void (*destroy)(void*)) override { owned_.emplace_back(object, destroy); }

 private:
  std::vector<std::unique_ptr<AlignedBuffer>> blocks_;
  std::vector<std::pair<void*, void (*)(void*)>> owned_;
  size_t block_ = 0, used_ = 0;
};

struct Workspace::Impl {
  CallArena arena;
  AlignedBuffer call;  ///< shared by the items of a call: partial results, masks
  AlignedBuffer row_sums;

  /// Scratch of one work item, for as long as the lease lives. At most `concurrency` are out at the same time.
  class Lease {
   public:
    Lease(Impl& from, size_t bytes) : from_(from) {
      const std::lock_guard lock(from.mutex_);
      if (from.free_.empty()) from.free_.push_back(std::make_unique<AlignedBuffer>());
      buffer_ = std::move(from.free_.back());
      from.free_.pop_back();
      data_ = buffer_->reserve(bytes);
    }
    ~Lease() {
      const std::lock_guard lock(from_.mutex_);
      from_.free_.push_back(std::move(buffer_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    void* data() const { return data_; }

   private:
    Impl& from_;
    std::unique_ptr<AlignedBuffer> buffer_;
    void* data_;
  };
  /// Makes sure that `leases` of them need no allocation.
  void prepare_leases(int leases, size_t bytes);
  size_t bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<AlignedBuffer>> free_;
};

/// The workspace of a call: the caller's, or one made for this call.
class WorkspaceOf {
 public:
  explicit WorkspaceOf(const Call& call) {
    if (!call.workspace) own_.emplace();
    impl_ = call.workspace ? &call.workspace->impl() : &own_->impl();
  }
  Workspace::Impl& impl() { return *impl_; }

 private:
  std::optional<Workspace> own_;
  Workspace::Impl* impl_;
};

}  // namespace qkv
