// One job at a time: a counter of items, workers that spin for a moment and then sleep.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "core/format.h"
#include "qkv/executor.h"

namespace qkv {
namespace {

constexpr int kMostThreads = 4096;
/// Looks at an atomic before a thread goes to sleep: some 20 us, the gap between two calls of a running model.
constexpr int kSpins = 1000;
constexpr size_t kCacheLine = 64;

/// Counts the forks that led to this process. A fork copies only the thread that calls it, so that everything a pool
/// knows about its workers is void where the number has changed.
std::atomic<uint32_t> generation{1};

void watch_forks() {
  static const int once = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  static_cast<void>(once);  // without memory for a handler a child would run its loops in the caller only
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until the value is no longer `old`, and gives the new one.
int wait_while(std::atomic<int>& value, int old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (const int now = value.load(); now != old) return now;
    pause();
  }
  value.wait(old);
  return value.load();
}

int threads_by_default() {
  if (const char* text = std::getenv("QKV_THREADS"); text && *text) {
    const std::string_view digits(text);
    int threads = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), threads);
    if (error != std::errc{} || end != digits.end() || threads < 1 || threads > kMostThreads) {
      option_error(
          "default_executor: the environment's QKV_THREADS is \"{}\"; expected a number from 1 to {}; set it or unset it",
          digits, kMostThreads);
    }
    return threads;
  }
#ifdef CPU_COUNT
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::clamp(CPU_COUNT(&allowed), 1, kMostThreads);
#endif
  return std::clamp(int(std::thread::hardware_concurrency()), 1, kMostThreads);
}

}  // namespace

Executor::~Executor() = default;

struct ThreadPool::State {
  explicit State(int n) : threads(n) {}

  const int threads;
  std::vector<std::thread> workers;
  uint32_t workers_generation = 0;  // in which process the workers live

  void (*run)(void*, int64_t) = nullptr;  // the job; written while no worker can be in it
  void* context = nullptr;
  int64_t items = 0;
  bool stopping = false;

  alignas(kCacheLine) std::atomic<uint32_t> owner{0};  // the process whose caller has the pool, 0: free
  alignas(kCacheLine) std::atomic<int> epoch{0};       // odd while a job is open
  alignas(kCacheLine) std::atomic<int> inside{0};      // workers that may be in a job
  alignas(kCacheLine) std::atomic<int64_t> next{0};    // the first item that nobody has taken

  /// An owner of an earlier process cannot give the pool back in this one, so it does not count.
  bool try_lock(uint32_t now) {
    uint32_t holder = owner.load();
    return holder != now && owner.compare_exchange_strong(holder, now);
  }

  void take_items() {
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) run(context, item);
  }

  /// A worker says that it is inside before it looks whether the job is open; the caller closes the job before it looks
  /// whether somebody is inside. Whatever the order, no worker reads a job that is being replaced.
  void work(int seen) {
    for (;;) {
      do seen = wait_while(epoch, seen);
      while (seen % 2 == 0);
      inside.fetch_add(1);
      seen = epoch.load();
      const bool open = seen % 2 != 0, stop = open && stopping;
      if (open && !stop) take_items();
      if (inside.fetch_sub(1) == 1) inside.notify_all();
      if (stop) return;
    }
  }

  void start_workers(uint32_t now) {
    if (workers_generation == now) return;
    workers_generation = now;
    for (std::thread& gone : workers) std::construct_at(&gone);  // handles of the parent's threads: not to be joined
    workers.clear();
    epoch.store(0);
    inside.store(0);
    workers.reserve(size_t(threads - 1));
    try {
      while (int(workers.size()) < threads - 1) workers.emplace_back([this] { work(0); });
    } catch (const std::system_error&) {
      // The system gives no more threads: fewer change the speed and nothing else.
    }
  }

  void open_job(int64_t helpers) {
    next.store(0, std::memory_order_relaxed);
    epoch.fetch_add(1);
    if (helpers >= int64_t(workers.size())) {
      epoch.notify_all();
    } else {
      while (helpers-- > 0) epoch.notify_one();
    }
  }

  void close_job() {
    epoch.fetch_add(1);
    for (int n; (n = inside.load()) != 0;) wait_while(inside, n);
  }
};

ThreadPool::ThreadPool(int threads) {
  if (threads < 1 || threads > kMostThreads) {
    option_error("ThreadPool: threads is {}; expected 1 to {}, the caller's thread included", threads, kMostThreads);
  }
  watch_forks();
  state_ = std::make_unique<State>(threads);
}

ThreadPool::~ThreadPool() {
  State& s = *state_;
  if (s.workers_generation != generation.load()) {
    for (std::thread& gone : s.workers) std::construct_at(&gone);
    return;
  }
  s.stopping = true;
  s.open_job(int64_t(s.workers.size()));
  for (std::thread& worker : s.workers) worker.join();
}

void ThreadPool::parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) {
  State& s = *state_;
  const uint32_t now = generation.load();
  if (items <= 1 || s.threads == 1 || !s.try_lock(now)) {
    for (int64_t item = 0; item < items; ++item) run(context, item);
    return;
  }
  s.start_workers(now);
  s.run = run;
  s.context = context;
  s.items = items;
  s.open_job(items - 1);
  s.take_items();
  s.close_job();
  s.owner.store(0);
}

int ThreadPool::concurrency() const { return state_->threads; }

Executor& default_executor() {
  static ThreadPool pool(threads_by_default());
  return pool;
}

}  // namespace qkv
