// How far the work of a command is.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "qkv/attention.h"
#include "qkv/executor.h"

namespace qkv::cli {

/// The work says which part it is at, a Watch shows it. As an executor it counts the items that the default one has done.
class Progress final : public Executor {
 public:
  /// "layer 4, head 7", of so many items; 0: how many is not known. The only part of a command needs no name.
  void begin(std::string part, int64_t items = 0);
  void advance() { done_.fetch_add(1, std::memory_order_relaxed); }
  /// qkv::forward(), its items counted.
  void forward(const Attention&, const Inputs&, const Outputs&);
  /// "layer 4, head 7: 35 %"; empty where nothing is known.
  std::string text() const;

  void parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) override;
  int concurrency() const override { return default_executor().concurrency(); }

 private:
  void expect(int64_t items);
  mutable std::mutex mutex_;  // of the name
  std::string part_;
  std::atomic<int64_t> done_{0}, expected_{0};
};

}  // namespace qkv::cli
