#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "qkv/error.h"
#include "qkv/executor.h"

namespace qkv {
namespace {

using Item = std::function<void(int64_t)>;

void run(Executor& executor, int64_t items, const Item& item) {
  executor.parallel_for(
      items, [](void* context, int64_t n) { (*static_cast<const Item*>(context))(n); }, const_cast<Item*>(&item));
}

/// How often each item ran in one loop; plain integers, so that a missing synchronisation shows under ThreadSanitizer.
std::vector<int> counts_of(Executor& executor, int64_t items) {
  std::vector<int> counts(size_t(items), 0);
  run(executor, items, [&](int64_t n) { ++counts[size_t(n)]; });
  return counts;
}

class ThreadPools : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPools, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPools, RunEveryItemExactlyOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.concurrency(), GetParam());
  for (int64_t items : {0, 1, 2, 3, 7, 64, 1000, 20000}) {
    EXPECT_EQ(counts_of(pool, items), std::vector<int>(size_t(items), 1));
  }
}

TEST_P(ThreadPools, SurviveManyShortLoops) {
  ThreadPool pool(GetParam());
  int64_t sum[3] = {};
  for (int loop = 0; loop < 5000; ++loop) run(pool, 3, [&](int64_t n) { sum[n] += n; });
  EXPECT_EQ(sum[0], 0);
  EXPECT_EQ(sum[1], 5000);
  EXPECT_EQ(sum[2], 10000);
}

TEST_P(ThreadPools, WakeUpAfterASleep) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(counts_of(pool, 16), std::vector<int>(16, 1));
  }
}

TEST_P(ThreadPools, RunANestedLoopInTheThreadOfItsItem) {
  ThreadPool pool(GetParam());
  std::vector<int> inner(64, 0);
  std::atomic<int> elsewhere = 0;
  run(pool, 8, [&](int64_t outer) {
    const auto here = std::this_thread::get_id();
    run(pool, 8, [&](int64_t n) {
      ++inner[size_t(outer * 8 + n)];
      elsewhere += std::this_thread::get_id() != here;
    });
  });
  EXPECT_EQ(inner, std::vector<int>(64, 1));
  EXPECT_EQ(elsewhere, 0);
}

TEST_P(ThreadPools, ServeSeveralCallersAtOnce) {
  ThreadPool pool(GetParam());
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 200; ++loop) wrong += counts_of(pool, 50) != std::vector<int>(50, 1);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(ThreadPools, CanBeMadeAndDestroyedOften) {
  for (int n = 0; n < 50; ++n) {
    ThreadPool unused(GetParam());
    ThreadPool used(GetParam());
    EXPECT_EQ(counts_of(used, 5), std::vector<int>(5, 1));
  }
}

TEST(ThreadPool, UsesSeveralThreadsWhereItemsTakeLong) {
  ThreadPool pool(2);
  std::atomic<int> started = 0;
  bool together[2] = {};
  run(pool, 2, [&](int64_t n) {
    ++started;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (started < 2 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    together[n] = started == 2;
  });
  EXPECT_TRUE(together[0] && together[1]) << "each item waits until the other runs";
}

#if defined(__SANITIZE_THREAD__)
#define QKV_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define QKV_THREAD_SANITIZER 1
#endif
#endif
#ifdef QKV_THREAD_SANITIZER
constexpr bool kChildrenMayStartThreads = false;
#else
constexpr bool kChildrenMayStartThreads = true;
#endif
constexpr const char* kWhyNot = "ThreadSanitizer ends a forked child that starts a thread";

/// Runs `child` in a forked process. Its exit code, or -1 where it did not end within 20 seconds.
int exit_code_of_child(const std::function<bool()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(child() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ThreadPool, StartsAfreshInAForkedChild) {
  if (!kChildrenMayStartThreads) GTEST_SKIP() << kWhyNot;
  ThreadPool pool(3);
  ASSERT_EQ(counts_of(pool, 100), std::vector<int>(100, 1));
  EXPECT_EQ(exit_code_of_child([&] {
              for (int loop = 0; loop < 100; ++loop) {
                if (counts_of(pool, 100) != std::vector<int>(100, 1)) return false;
              }
              return exit_code_of_child([&] { return counts_of(pool, 100) == std::vector<int>(100, 1); }) == 0;
            }),
            0);
  EXPECT_EQ(counts_of(pool, 100), std::vector<int>(100, 1)) << "the parent's pool goes on";
}

TEST(ThreadPool, CanBeDestroyedInAForkedChild) {
  auto pool = std::make_unique<ThreadPool>(3);
  ASSERT_EQ(counts_of(*pool, 100), std::vector<int>(100, 1));
  EXPECT_EQ(exit_code_of_child([&] {
              pool.reset();
              return true;
            }),
            0);
}

TEST(ThreadPool, WorksInAChildForkedWhileAnotherThreadUsesIt) {
  if (!kChildrenMayStartThreads) GTEST_SKIP() << kWhyNot;
  ThreadPool pool(2);
  std::atomic<bool> stop = false, running = false;
  std::thread caller([&] {
    while (!stop)
      run(pool, 2, [&](int64_t) {
        running = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      });
  });
  while (!running) std::this_thread::yield();
  EXPECT_EQ(exit_code_of_child([&] { return counts_of(pool, 100) == std::vector<int>(100, 1); }), 0);
  stop = true;
  caller.join();
}

TEST(ThreadPool, RefusesNumbersThatMakeNoSense) {
  try {
    ThreadPool none(0);
    FAIL() << "nothing was thrown";
  } catch (const OptionError& e) {
    EXPECT_STREQ(e.what(), "ThreadPool: threads is 0; expected 1 to 4096, the caller's thread included");
  }
  EXPECT_THROW(ThreadPool many(1 << 20), OptionError);
}

/// default_executor() reads the environment once, so every claim about it has a process of its own.
int threads_with(const char* setting) {
  return exit_code_of_child([&] {
    if (setting) setenv("QKV_THREADS", setting, 1);
    else unsetenv("QKV_THREADS");
    try {
      _exit(default_executor().concurrency());
    } catch (const OptionError& e) {
      _exit(std::string(e.what()).find(std::string("\"") + setting + "\"; expected a number from 1 to 4096") !=
                    std::string::npos
                ? 200
                : 201);
    }
    return false;
  });
}

TEST(DefaultExecutor, HasAThreadForEveryProcessorUnlessTheEnvironmentSaysHowMany) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  EXPECT_EQ(threads_with(nullptr), CPU_COUNT(&allowed));
  EXPECT_EQ(threads_with(""), CPU_COUNT(&allowed));
  EXPECT_EQ(threads_with("3"), 3);
}

TEST(DefaultExecutor, RefusesASettingThatIsNoNumber) {
  for (const char* wrong : {"0", "-1", "many", "4x", "5000"}) EXPECT_EQ(threads_with(wrong), 200) << wrong;
}

}  // namespace
}  // namespace qkv
