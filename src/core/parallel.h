// parallel_for for lambdas: exceptions come back to the caller, a stop request ends the loop.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <stop_token>

#include "qkv/error.h"
#include "qkv/executor.h"

namespace qkv {

/// Throws Cancelled when the caller wants to stop.
inline void stop_point(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Cancelled("the call was stopped; what it wrote so far is not a result");
}

/// Calls f(item) for every item. Of several exceptions the one of the lowest item is thrown again, here.
template <class F> void parallel(const Call& call, int64_t items, F&& f) {
  struct Context {
    F& f;
    const std::stop_token& stop;
    std::mutex mutex{};
    std::exception_ptr first{};
    std::atomic<int64_t> failed{std::numeric_limits<int64_t>::max()};
  } context{f, call.stop};
  Executor& executor = call.executor ? *call.executor : default_executor();
  executor.parallel_for(
      items,
      [](void* p, int64_t item) {
        Context& c = *static_cast<Context*>(p);
        if (item > c.failed.load(std::memory_order_relaxed)) return;
        try {
          stop_point(c.stop);
          c.f(item);
        } catch (...) {
          const std::lock_guard lock(c.mutex);
          if (item < c.failed.load(std::memory_order_relaxed)) {
            c.failed.store(item, std::memory_order_relaxed);
            c.first = std::current_exception();
          }
        }
      },
      &context);
  if (context.first) std::rethrow_exception(context.first);
}

}  // namespace qkv
