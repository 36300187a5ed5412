// Memory of a tape: blocks that the next step finds again.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace qkv::nn::detail {

/// Hands out blocks on 64-byte lines, and keeps those that come back. Sizes are rounded up to an eighth of a power of two, so that
/// lengths that vary a little find each other's blocks.
class Pool {
 public:
  class Block {
   public:
    Block() = default;
    Block(std::shared_ptr<Pool> pool, size_t bytes)
        : pool_(std::move(pool)), bytes_(bytes), data_(pool_->take(bytes)) {}
    Block(Block&& other) noexcept { swap(other); }
    Block& operator=(Block&& other) noexcept {
      Block(std::move(other)).swap(*this);
      return *this;
    }
    ~Block() {
      if (data_) pool_->give_back(data_, bytes_);
    }
    std::byte* data() const { return data_; }

   private:
    void swap(Block& other) {
      std::swap(pool_, other.pool_), std::swap(bytes_, other.bytes_), std::swap(data_, other.data_);
    }
    std::shared_ptr<Pool> pool_;
    size_t bytes_ = 0;
    std::byte* data_ = nullptr;
  };

  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();
  size_t used() const { return used_; }
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = used_; }

 private:
  std::byte* take(size_t bytes);
  void give_back(std::byte* data, size_t bytes);
  std::map<size_t, std::vector<std::byte*>> free_;
  size_t used_ = 0, peak_ = 0;
};

}  // namespace qkv::nn::detail
