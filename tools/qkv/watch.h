// Long computations: how far they are, and Ctrl-C.
#pragma once
#include <atomic>
#include <csignal>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "qkv/error.h"
#include "qkv/executor.h"

namespace qkv::cli {

/// A signal asked for the end. main() ends the process by it, so that a shell's loop ends too.
struct Interrupted : Cancelled {
  Interrupted(const char* what, int by) : Cancelled(what), signal(by) {}
  int signal;
};

/// Counts the work items that the default executor has done.
class Counting final : public Executor {
 public:
  void parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) override;
  int concurrency() const override { return default_executor().concurrency(); }
  void expect(int64_t items);  ///< starts a new count
  /// 0 to 1; nothing where no count is expected.
  std::optional<double> share() const;

 private:
  std::atomic<int64_t> done_{0}, expected_{0};
};

/// While it lives, SIGINT, SIGTERM and SIGHUP request a stop instead of ending the process, so that nothing half-written
/// stays; and on a terminal a line on stderr says how far the work is, from the first second on.
class Watch {
 public:
  /// `counting` has to outlive this.
  Watch(std::string what, const Counting& counting);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  std::stop_token stop() const { return interrupted_.get_token(); }
  /// Calls f; Cancelled because of a signal becomes Interrupted.
  template <class F> void run(F f) {
    try {
      f();
    } catch (const Cancelled& e) {
      told_ = true;
      throw Interrupted(e.what(), signal_);
    }
  }

 private:
  void look(const std::stop_token& end);
  std::string what_;
  const Counting& counting_;
  sigset_t signals_, before_;
  std::stop_source interrupted_;
  std::atomic<int> signal_{0};
  bool told_ = false;
  bool terminal_;
  std::jthread watcher_;
};

}  // namespace qkv::cli
