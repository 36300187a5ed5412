// One order for sums to which several work items add while they run at the same time.
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <thread>

namespace qkv {

/// Work items that follow each other say how many steps they have passed, and wait for the one before. Items are begun in the
/// order of their numbers (take() gives them out), so that whom an item waits for has begun: no order in which an executor calls
/// can block them.
class Turns {
 public:
  /// One number an item, all 0.
  void begin(std::span<std::atomic<int64_t>> passed) { passed_ = passed; }
  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }
  void pass(int64_t item, int64_t steps) { passed_[size_t(item)].store(steps, std::memory_order_release); }
  /// Returns when `item`, before(item), before(before(item)), ... have all passed so many steps. -1 is no item. All of them are
  /// asked: one that had nothing to do at a step passes it without waiting for those before.
  template <class F> void wait(int64_t item, int64_t steps, F before) const {
    for (; item >= 0; item = before(item)) {
      const std::atomic<int64_t>& passed = passed_[size_t(item)];
      for (int looks = 0; passed.load(std::memory_order_acquire) < steps; ++looks)
        if (looks > kLooks) std::this_thread::yield();
    }
  }

  /// While it lives, an item is under way; then it has passed everything, also where an exception ended it.
  class Item {
   public:
    explicit Item(Turns& turns) : turns_(turns), number_(turns.take()) {}
    ~Item() { turns_.pass(number_, std::numeric_limits<int64_t>::max()); }
    Item(const Item&) = delete;
    Item& operator=(const Item&) = delete;
    int64_t number() const { return number_; }

   private:
    Turns& turns_;
    int64_t number_;
  };

 private:
  static constexpr int kLooks = 64;  // before the processor is left to others
  std::span<std::atomic<int64_t>> passed_;
  std::atomic<int64_t> next_{0};
};

}  // namespace qkv
