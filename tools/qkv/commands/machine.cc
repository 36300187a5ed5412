#include "qkv/commands/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include <fmt/format.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "qkv/commands/machine.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cli {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kChains = 12;  // enough to hide the latency of an FMA on every machine known, few enough for 16 registers

/// Returns how many floating-point operations were done; their result goes to `sink`, so that none is left out.
int64_t MultiplyAdd(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto by = hn::Set(d, sink[0]), add = hn::Set(d, sink[1]);
  hn::Vec<decltype(d)> sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = hn::Set(d, sink[2] + float(i));  // all different, or one chain would do
  for (int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(sum[i], by, add);
  }
  auto all = sum[0];
  for (int i = 1; i < kChains; ++i) all = hn::Add(all, sum[i]);
  sink[2] = hn::GetLane(all);
  return rounds * kChains * 2 * int64_t(hn::Lanes(d));
}

float ReadAll(const float* from, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t step = int64_t(hn::Lanes(d));
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (int64_t i = 0; i + 4 * step <= n; i += 4 * step) {
    a = hn::Add(a, hn::LoadU(d, from + i));
    b = hn::Add(b, hn::LoadU(d, from + i + step));
    c = hn::Add(c, hn::LoadU(d, from + i + 2 * step));
    e = hn::Add(e, hn::LoadU(d, from + i + 3 * step));
  }
  return hn::GetLane(hn::Add(hn::Add(a, b), hn::Add(c, e)));
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::cli
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cli {
HWY_EXPORT(MultiplyAdd);
HWY_EXPORT(ReadAll);
namespace {

constexpr int64_t kPeakRounds = 10'000'000;  // 20 to 40 ms: a burst that no real work could sustain is not a peak

template <class F> double seconds_on_all(Executor& executor, F f) {
  const auto start = std::chrono::steady_clock::now();
  executor.parallel_for(
      executor.concurrency(), [](void* p, int64_t i) { (*static_cast<F*>(p))(i); }, &f);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double measure_peak(Executor& executor) {
  struct alignas(64) Line {
    float values[3] = {0.999f, 1e-3f, 1e-3f};
  };
  std::vector<Line> sinks(size_t(executor.concurrency()));
  std::vector<int64_t> operations(sinks.size());
  const auto run = [&](int64_t i) {
    operations[size_t(i)] = HWY_DYNAMIC_DISPATCH(MultiplyAdd)(kPeakRounds, sinks[size_t(i)].values);
  };
  const double seconds = seconds_on_all(executor, run);
  int64_t sum = 0;
  for (const int64_t n : operations) sum += n;
  return double(sum) / seconds / 1e9;
}

double measure_bandwidth(Executor& executor) {
  constexpr int64_t kFloats = int64_t{16} << 20;
  static std::vector<std::vector<float>> memory;  // kept, so that later runs do not pay for fresh pages
  memory.resize(std::max(memory.size(), size_t(executor.concurrency())));
  for (auto& m : memory) m.resize(kFloats, 1.0f);
  std::vector<float> sums(memory.size());
  const double seconds = seconds_on_all(
      executor, [&](int64_t i) { sums[size_t(i)] = HWY_DYNAMIC_DISPATCH(ReadAll)(memory[size_t(i)].data(), kFloats); });
  return double(executor.concurrency()) * double(kFloats * 4) / seconds / 1e9;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.find(": ") + 2, line.size()));
#if defined(__aarch64__)
  return "aarch64";
#else
  return "unknown processor";
#endif
}

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace qkv::cli
#endif
