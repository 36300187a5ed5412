// Where the threads come from, where scratch lives, how a call is stopped.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>

#include "qkv/export.h"

namespace qkv {

/// Runs work items. Inject your own to let qkv use the threads of your program.
class QKV_EXPORT Executor {
 public:
  virtual ~Executor();
  /// Calls run(context, item) once for every item in [0, items), in any order, on any threads; returns when all are
  /// done. `run` does not throw.
  virtual void parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) = 0;
  /// How many items may run at the same time, at least 1.
  virtual int concurrency() const = 0;
};

/// A pool of `threads` threads, the caller's included; 1 runs everything in the caller. It starts afresh in a forked
/// child. A call that finds the pool busy with another call runs in its own thread.
class QKV_EXPORT ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads);  ///< 1 to 4096; throws OptionError
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  void parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) override;
  int concurrency() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The pool that calls use unless told otherwise: a thread for every processor that this process may run on, or
/// QKV_THREADS of the environment. Made at first use; throws OptionError where QKV_THREADS is no such number.
QKV_EXPORT Executor& default_executor();

/// Scratch that calls reuse: from the second equal call on forward(), softmax() and merge_partials() allocate nothing (patterns
/// with visit() may, and observe() makes copies of observers). One call at a time may use it.
class QKV_EXPORT Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(Workspace&&) noexcept;
  Workspace& operator=(Workspace&&) noexcept;
  size_t bytes() const;  ///< held at the moment

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// How a call runs. Nothing here changes a bit of the result.
struct Call {
  Executor* executor = nullptr;    ///< absent: default_executor()
  Workspace* workspace = nullptr;  ///< absent: scratch is allocated for this call
  std::stop_token stop{};          ///< when it is requested, the call throws Cancelled soon after
};

}  // namespace qkv
