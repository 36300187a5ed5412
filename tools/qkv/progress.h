// How far the work of a command is.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "qkv/attention.h"
#include "qkv/executor.h"

namespace qkv::cli {

/// The work says which part it is at, a Watch shows it. As an executor it counts the items that have been done.
class Progress final : public Executor {
 public:
  /// How the work runs from now on. Where its stop is requested, begin() and forward() throw Cancelled.
  void run_by(const Call& call) { call_ = call; }
  /// As which the library's functions run.
  Call call() { return {.executor = this, .stop = call_.stop}; }
  /// "layer 4, head 7", of so many items; 0: how many is not known. The only part of a command needs no name.
  void begin(std::string part, int64_t items = 0);
  void advance() { done_.fetch_add(1, std::memory_order_relaxed); }
  /// qkv::forward(), its items counted.
  void forward(const Attention&, const Inputs&, const Outputs&);
  /// "layer 4, head 7: 35 %"; empty where nothing is known.
  std::string text() const;

  void parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) override;
  int concurrency() const override { return executor().concurrency(); }

 private:
  Executor& executor() const { return call_.executor != nullptr ? *call_.executor : default_executor(); }
  void expect(int64_t items);
  Call call_;
  mutable std::mutex mutex_;  // of the name
  std::string part_;
  std::atomic<int64_t> done_{0}, expected_{0};
};

}  // namespace qkv::cli
