// How a call runs: threads, executors of others, cancellation, forked children, allocations.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "qkv/masks.h"
#include "qkv/merge.h"
#include "qkv/softmax.h"
#include "tests/support/compare.h"
#include "tests/support/options.h"
#include "tests/support/sanitizer.h"
#include "tests/support/slopes.h"

namespace {
std::atomic<int64_t> allocations{0};
}

#if !defined(QKV_ADDRESS_SANITIZER) && !defined(QKV_THREAD_SANITIZER)
// Every allocation of this program is counted, but where a sanitizer has operators of its own. One definition a program.
// Not inlined, so that the compiler does not see malloc behind new.
#define QKV_NOINLINE __attribute__((noinline))
QKV_NOINLINE void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
QKV_NOINLINE void* operator new(size_t bytes, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const size_t unit = std::max(size_t(alignment), sizeof(void*));
  if (void* p = std::aligned_alloc(unit, (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
QKV_NOINLINE void operator delete(void* p) noexcept { std::free(p); }
QKV_NOINLINE void operator delete(void* p, size_t) noexcept { std::free(p); }
QKV_NOINLINE void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
QKV_NOINLINE void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
#endif

namespace qkv::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// Some hundred milliseconds to some seconds of work.
Example long_example() {
  return Example(Case{.key_heads = 4, .queries = 9000, .keys = 9000, .head_dim = 40, .value_dim = 40});
}

template <class F> void expect_cancelled_within_a_second(F call) {
  std::stop_source source;
  std::atomic<bool> asked = false;
  Clock::time_point when;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    when = Clock::now();
    asked = true;
    source.request_stop();
  });
  EXPECT_THROW(call(source.get_token()), Cancelled);
  const auto end = Clock::now();
  stopper.join();
  ASSERT_TRUE(asked);
  EXPECT_LT(std::chrono::duration<double>(end - when).count(), 1.0);
}

TEST(Cancel, EndsALongCallWithinASecond) {
  const Example e = long_example();
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    expect_cancelled_within_a_second([&](std::stop_token stop) { run(e, {.executor = &pool, .stop = stop}); });
  }
}

TEST(Cancel, EndsALongLookAtTheWeightsWithinASecond) {
  struct Slow {
    double sum = 0;
    void see(double w, Site) { sum += std::sqrt(w); }
    void join(const Slow& later) { sum += later.sum; }
  } slow;
  const Example e = long_example();
  Tensor row_max = e.lse().fill(0), row_sum = e.lse().fill(1);
  expect_cancelled_within_a_second([&](std::stop_token stop) {
    observe(e.attention, e.inputs(), {row_max.view(), row_sum.view()}, {slow}, {.stop = stop});
  });
}

TEST(Cancel, EndsSlowPatternsOfOnesOwnWithinASecond) {
  struct Slow {
    bool sees(Site at) const {
      double x = at.query;
      for (int i = 0; i < 20; ++i) x = std::sin(x + at.key);
      return x > 0;
    }
  };
  Example e(Case{.queries = 5000, .keys = 20000, .head_dim = 1, .value_dim = 1});
  e.attention.visible(Slow{});
  expect_cancelled_within_a_second([&](std::stop_token stop) { run(e, {.stop = stop}); });
  expect_cancelled_within_a_second([&](std::stop_token stop) { find_path(e.attention, e.inputs(), {.stop = stop}); });
  Tensor keep(DType::kBool, {1, 1, 5000, 20000});
  expect_cancelled_within_a_second(
      [&](std::stop_token stop) { keep_mask_of(e.attention, e.inputs(), keep.as<bool>(), {.stop = stop}); });
}

TEST(Cancel, EndsALongLineWithinASecond) {
  Tensor x(DType::kFloat32, {40'000'000});
  x.fill(0);
  expect_cancelled_within_a_second([&](std::stop_token stop) { softmax(x.view(), x.view(), -1, {}, {.stop = stop}); });
}

TEST(Cancel, BeforeTheCallNothingIsWritten) {
  const Example e(Case{.queries = 20, .keys = 20, .head_dim = 4, .value_dim = 4});
  std::stop_source source;
  source.request_stop();
  Tensor out = e.out();
  const Tensor untouched = out;
  EXPECT_THROW(forward(e.attention, e.inputs(), {.out = out.view()}, {.stop = source.get_token()}), Cancelled);
  EXPECT_TRUE(same_bits(out, untouched));
}

TEST(Cancel, ACallAfterACancelledOneIsRight) {
  const Example big = long_example(), small(Case{.queries = 50, .keys = 200, .head_dim = 4, .value_dim = 4});
  const Result wanted = run(small);
  Workspace workspace;
  ThreadPool pool(2);
  std::stop_source source;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    source.request_stop();
  });
  EXPECT_THROW(run(big, {.executor = &pool, .workspace = &workspace, .stop = source.get_token()}), Cancelled);
  stopper.join();
  EXPECT_TRUE(same_bits(wanted, run(small, {.executor = &pool, .workspace = &workspace})));
}

/// Items from the last to the first, in threads that come and go.
class Backwards final : public Executor {
 public:
  void parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) override {
    std::atomic<int64_t> next = items;
    const auto work = [&] {
      for (int64_t item; (item = next.fetch_sub(1) - 1) >= 0;) run(context, item);
    };
    std::thread other(work);
    work();
    other.join();
    calls += items;
  }
  int concurrency() const override { return 2; }
  int64_t calls = 0;
};

TEST(Executors, OfTheCallerRunEverything) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    Case c{.dtype = kFloatTypes[turn % 4],
           .batch = 2,
           .key_heads = 2,
           .queries = 60,
           .keys = 150,
           .head_dim = 6,
           .value_dim = 5,
           .seed = ++turn};
    option.set(c);
    const Example e(c);
    Backwards backwards;
    EXPECT_TRUE(same_bits(run(e), run(e, {.executor = &backwards}))) << option.name;
    EXPECT_GT(backwards.calls, 0);
  }
}

struct Throws {
  bool sees(Site at) const {
    if (at.row == 17) throw std::runtime_error("row 17 is not to be seen");
    return true;
  }
};

TEST(Executors, ExceptionsOfPoliciesComeBackToTheCaller) {
  ThreadPool pool(3);
  Example e(Case{.key_heads = 4, .queries = 100, .keys = 200, .head_dim = 4, .value_dim = 4});
  const Result wanted = run(e);
  Example bad = e;
  bad.attention.visible(Throws{});
  for (int n = 0; n < 3; ++n) EXPECT_THROW(run(bad, {.executor = &pool}), std::runtime_error);
  EXPECT_TRUE(same_bits(wanted, run(e, {.executor = &pool})));
}

TEST(Concurrency, TwoThreadsMayCallAtOnce) {
  const Example a(Case{.key_heads = 4, .queries = 200, .keys = 300, .head_dim = 16, .value_dim = 8, .causal = true});
  const Example b(Case{
      .dtype = DType::kFloat64, .key_heads = 2, .group = 2, .queries = 1, .keys = 5000, .head_dim = 8, .value_dim = 8});
  const Result wanted_a = run(a), wanted_b = run(b);
  std::atomic<int> wrong = 0;
  const auto repeat = [&](const Example& e, const Result& wanted) {
    for (int n = 0; n < 30; ++n) wrong += !same_bits(wanted, run(e));
  };
  std::thread other(repeat, std::cref(a), std::cref(wanted_a)), third(repeat, std::cref(a), std::cref(wanted_a));
  repeat(b, wanted_b);
  other.join(), third.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Concurrency, OneAttentionMayServeManyThreads) {
  const Attention shared = Attention{}.visible(Causal{}).score(SoftCap{4});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned n = 0; n < 4; ++n)
    threads.emplace_back([&, n] {
      Example e(Case{.queries = 40, .keys = 40, .head_dim = 5, .value_dim = 5, .seed = n + 1});
      e.attention = shared;
      wrong += !within_bound(e, run(e));
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Fork, AChildMayUseTheDefaultPool) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer ends children that start threads";
  const Example e(Case{.key_heads = 4, .queries = 200, .keys = 300, .head_dim = 16, .value_dim = 8});
  const Result wanted = run(e);
  for (int n = 0; n < 3; ++n) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);  // a pool that waits for threads which the fork left behind would wait for ever
      _exit(same_bits(wanted, run(e)) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  EXPECT_TRUE(same_bits(wanted, run(e))) << "and the parent still works";
}

TEST(Workspaces, NothingIsAllocatedFromTheSecondEqualCallOn) {
  if (kSanitizer) GTEST_SKIP() << "sanitizers allocate by operators of their own";
  ASSERT_GT(allocations, 0) << "they are counted";
  unsigned turn = 0;
  ThreadPool pool(2);
  for (const Option& option : options()) {
    for (const int queries : {1, 70}) {
      Case c{.dtype = kFloatTypes[turn % 4],
             .batch = 2,
             .key_heads = 2,
             .queries = queries,
             .keys = 2500,
             .head_dim = 6,
             .value_dim = 5,
             .seed = ++turn};
      if (queries == 70) c.keys = 150;
      option.set(c);
      const Example e(c);
      const Inputs in = e.inputs();
      Tensor out = e.out(), lse = e.lse(), entropy = e.narrow(DType::kFloat32), top = e.wide(DType::kFloat32, 4);
      const Outputs outputs{.out = out.view(),
                            .lse = lse.view(),
                            .rows = {.entropy = entropy.as<float>(), .top_weights = top.as<float>()}};
      const Loss by(e);
      const Left left(e);
      Slopes slopes(e, Placement::kContiguous);
      const Upstream upstream = left.upstream(by);
      const Gradients gradients = slopes.views();
      Workspace workspace;
      const Call call{.executor = &pool, .workspace = &workspace};
      const auto both = [&] {
        forward(e.attention, in, outputs, call);
        backward(e.attention, in, upstream, gradients, call);
      };
      both();
      const size_t held = workspace.bytes();
      const int64_t before = allocations;
      both();
      both();
      EXPECT_EQ(allocations - before, 0) << option.name << ", " << queries << " queries";
      EXPECT_EQ(workspace.bytes(), held);
    }
  }
}

TEST(Workspaces, SoftmaxAndMergesAllocateNothingEither) {
  if (kSanitizer) GTEST_SKIP() << "sanitizers allocate by operators of their own";
  Tensor x(DType::kFloat32, {1, 2, 40, 50}), y = x, sums(DType::kFloat32, {1, 2, 40});
  x.normal(1), sums.fill(0);
  ThreadPool pool(2);
  Workspace workspace;
  const Call call{.executor = &pool, .workspace = &workspace};
  const Partial parts[] = {{x.view(), sums.view()}, {x.view(), sums.view()}};
  const Tensor sinks = tensor(DType::kFloat32, {2}, {0, 1});
  Tensor dx = x, dsums = sums, dsinks = sinks;
  const PartialGradient gradients[] = {{dx.view(), dsums.view()}, {}};
  const auto all = [&] {
    softmax(x.view(), y.view(), -1, {}, call);
    log_sum_exp(x.view(), View<void>(View<float>(sums.as<float>().data, {1, 2, 40, 1})), -1, {}, call);
    merge_partials(parts, {}, y.view(), {}, call);
    merge_partials_backward(parts, sinks.view(), y.view(), {}, {.parts = gradients, .dsinks = dsinks.view()}, call);
  };
  all();
  const int64_t before = allocations;
  all();
  EXPECT_EQ(allocations - before, 0);
}

TEST(Workspaces, AreOnlyAsLargeAsThePathSays) {
  const Example e(Case{.key_heads = 2,
                       .queries = 200,
                       .keys = 3000,
                       .head_dim = 32,
                       .value_dim = 16,
                       .causal = true,
                       .align = Align::kBottomRight});
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    Workspace workspace;
    const Call call{.executor = &pool, .workspace = &workspace};
    const int64_t said = find_path(e.attention, e.inputs(), call).scratch_bytes;
    Tensor out = e.out();
    forward(e.attention, e.inputs(), {.out = out.view()}, call);
    EXPECT_LE(int64_t(workspace.bytes()), said);
    EXPECT_GT(said, 0);
  }
}

}  // namespace
}  // namespace qkv::testing
