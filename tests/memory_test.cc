// Long sequences need little memory beyond their inputs and outputs. Measured in a child, by its highest resident size.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "qkv/backward.h"
#include "tests/support/case.h"
#include "tests/support/sanitizer.h"

namespace qkv::testing {
namespace {

/// A line of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& label) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == label && status >> kilobytes) return kilobytes * 1024;
  }
  return -1;
}

/// How far the resident size rises above what it was when the child began to measure; -1 where the child failed.
int64_t rise_of(const std::function<void(std::function<void()> begin)>& work) {
  int pipes[2];
  if (pipe(pipes) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    int64_t before = 0;
    work([&] { before = status_bytes("VmRSS:"); });
    const int64_t rise = status_bytes("VmHWM:") - before;
    const bool written = write(pipes[1], &rise, sizeof rise) == sizeof rise;
    _exit(written ? 0 : 1);
  }
  int64_t rise = -1;
  if (read(pipes[0], &rise, sizeof rise) != sizeof rise) rise = -1;
  int status = 0;
  waitpid(child, &status, 0);
  close(pipes[0]), close(pipes[1]);
  return rise;
}

void long_causal_window(int length, const std::function<void()>& begin) {
  Example e(Case{.queries = length,
                 .keys = length,
                 .head_dim = 64,
                 .value_dim = 64,
                 .causal = true,
                 .window = true,
                 .left = 1023,
                 .right = 0});
  Tensor out = e.out().fill(0), lse = e.lse().fill(0), entropy = e.narrow(DType::kFloat32).fill(0);
  Tensor top = e.wide(DType::kFloat32, 8).fill(0), top_index = e.wide(DType::kInt32, 8).fill(0);
  begin();
  forward(
      e.attention, e.inputs(),
      {.out = out.view(),
       .lse = lse.view(),
       .rows = {
           .entropy = entropy.as<float>(), .top_weights = top.as<float>(), .top_indices = top_index.as<int32_t>()}});
}

TEST(Memory, OfALongSequenceStaysSmall) {
  if (kSanitizer) GTEST_SKIP() << "sanitizers keep memory of their own";
  const int64_t rise = rise_of([](const auto& begin) { long_causal_window(16384, begin); });
  ASSERT_GE(rise, 0);
  EXPECT_LT(rise, int64_t{64} << 20);
}

TEST(SlowMemory, Of131072TokensIsBelow64Megabytes) {
  if (kSanitizer) GTEST_SKIP() << "sanitizers keep memory of their own";
  const int64_t rise = rise_of([](const auto& begin) { long_causal_window(131072, begin); });
  ASSERT_GE(rise, 0);
  EXPECT_LT(rise, int64_t{64} << 20);
  RecordProperty("megabytes", int(rise >> 20));
}

/// forward() and backward() of one head with dropout.
void train(Case c, const std::function<void()>& begin) {
  c.head_dim = c.value_dim = 64;
  c.dropout = 0.1;
  c.causal = true;
  const Example e(c);
  Tensor out = e.out().fill(0), row_max = e.lse().fill(0), row_sum = e.lse().fill(0);
  const Tensor dout = e.out().normal(1);
  Tensor dquery = Tensor(c.dtype, {1, 1, c.queries, 64}).fill(0), dkey = dquery, dvalue = dquery;
  begin();
  forward(e.attention, e.inputs(), {.out = out.view(), .row_max = row_max.view(), .row_sum = row_sum.view()});
  backward(e.attention, e.inputs(),
           {.out = out.view(), .dout = dout.view(), .row_max = row_max.view(), .row_sum = row_sum.view()},
           {.dquery = dquery.view(), .dkey = dkey.view(), .dvalue = dvalue.view()});
}

TEST(Memory, OfATrainingStepStaysSmall) {
  if (kSanitizer) GTEST_SKIP() << "sanitizers keep memory of their own";
  const int64_t rise = rise_of([](const auto& begin) {
    train({.dtype = DType::kBFloat16, .queries = 16384, .keys = 16384, .window = true, .left = 255, .right = 0}, begin);
  });
  ASSERT_GE(rise, 0);
  EXPECT_LT(rise, int64_t{64} << 20);
}

TEST(SlowMemory, OfATrainingStepOf32768TokensIsBelow64Megabytes) {
  if (kSanitizer) GTEST_SKIP() << "sanitizers keep memory of their own";
  const int64_t rise = rise_of([](const auto& begin) { train({.queries = 32768, .keys = 32768}, begin); });
  ASSERT_GE(rise, 0);
  EXPECT_LT(rise, int64_t{64} << 20);
  RecordProperty("megabytes", int(rise >> 20));
}

TEST(Memory, TheMeasureSeesWhatIsAllocated) {
  if (kSanitizer) GTEST_SKIP() << "sanitizers keep memory of their own";
  const int64_t rise = rise_of([](const auto& begin) {
    begin();
    std::vector<char> block(100 << 20, 1);
    if (block[12345] != 1) _exit(2);
  });
  EXPECT_GT(rise, int64_t{90} << 20);
}

}  // namespace
}  // namespace qkv::testing
