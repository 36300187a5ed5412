#include "interrupt.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "qkv/error.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

constexpr double kLong = 2e9;  // operations: a tenth of a second or so
constexpr auto kPatience = std::chrono::milliseconds(50);

std::mutex pool_mutex;
std::shared_ptr<ThreadPool> pool;

/// Holds on to the pool for a call, so that another thread may ask for another number.
std::shared_ptr<Executor> current() {
  const std::lock_guard lock(pool_mutex);
  if (pool) return pool;
  return {std::shared_ptr<void>(), &default_executor()};
}

constexpr size_t kMostKept = size_t{64} << 20;

/// Short calls of a thread find the scratch of the one before: memory from the system costs more than they take.
void run_short(Executor& on, const std::function<void(const Call&)>& work) {
  thread_local Workspace workspace;
  work({.executor = &on, .workspace = &workspace});
  if (workspace.bytes() > kMostKept) workspace = Workspace();
}

bool is_main_thread() {
  const nb::object threading = nb::module_::import_("threading");
  return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

/// A call in a thread of its own.
class Beside {
 public:
  Beside(const std::function<void(const Call&)>& work, Executor& on) {
    thread_ = std::jthread([this, &work, &on](const std::stop_token& stop) {
      std::exception_ptr fault;
      try {
        work({.executor = &on, .stop = stop});
      } catch (...) {
        fault = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      fault_ = fault;
      done_ = true;
      changed_.notify_one();
    });
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return done_; });
  }
  void stop() { thread_.request_stop(); }
  void finish() {
    thread_.join();
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr fault_;
  std::jthread thread_;
};

}  // namespace

void set_num_threads(int threads) {
  auto made = std::make_shared<ThreadPool>(threads);
  const std::lock_guard lock(pool_mutex);
  pool = std::move(made);
}
int num_threads() { return current()->concurrency(); }

void run(double operations, const std::function<void(const Call&)>& work) {
  const std::shared_ptr<Executor> on = current();
  if (operations < kLong || !is_main_thread()) {
    const nb::gil_scoped_release unlocked;
    return run_short(*on, work);
  }
  bool interrupted = false;
  {
    const nb::gil_scoped_release unlocked;
    Beside beside(work, *on);
    while (!beside.wait()) {
      const nb::gil_scoped_acquire locked;
      if (PyErr_CheckSignals() == 0) continue;
      interrupted = true;
      beside.stop();
      break;
    }
    try {
      beside.finish();
    } catch (const Cancelled&) {
      if (!interrupted) throw;
    }
  }
  if (interrupted) throw nb::python_error();
}

}  // namespace qkv::python
