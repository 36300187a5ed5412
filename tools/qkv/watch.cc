#include "qkv/watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <fmt/format.h>

#include "qkv/labels.h"

namespace qkv::cli {

namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int kWake = SIGUSR2;              // ends the watcher's sleep
constexpr timespec kPause{0, 100'000'000};  // a tenth of a second: soon enough for Ctrl-C and for the eye
constexpr const char* kClearLine = "\r\x1b[K";

struct Item {
  void (*run)(void*, int64_t);
  void* context;
  std::atomic<int64_t>* done;
};

}  // namespace

void Counting::parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) {
  Item each{run, context, &done_};
  default_executor().parallel_for(
      items,
      [](void* p, int64_t n) {
        const auto& item = *static_cast<Item*>(p);
        item.run(item.context, n);
        item.done->fetch_add(1, std::memory_order_relaxed);
      },
      &each);
}

void Counting::expect(int64_t items) {
  done_ = 0;
  expected_ = items;
}

std::optional<double> Counting::share() const {
  const auto expected = static_cast<double>(expected_.load());
  if (expected <= 0) return std::nullopt;
  return std::min(1.0, static_cast<double>(done_.load()) / expected);
}

Watch::Watch(std::string what, const Counting& counting)
    : what_(std::move(what)), counting_(counting), terminal_(::isatty(STDERR_FILENO) != 0) {
  sigemptyset(&signals_);
  for (const int signal : kSignals) sigaddset(&signals_, signal);
  sigaddset(&signals_, kWake);
  // Threads inherit the mask, so the watcher alone sees these signals.
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  watcher_ = std::jthread([this](const std::stop_token& end) { look(end); });
}

Watch::~Watch() {
  watcher_.request_stop();
  pthread_kill(watcher_.native_handle(), kWake);
  watcher_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  if (signal_ != 0 && !told_) std::raise(signal_);  // it came when the work was done already
}

void Watch::look(const std::stop_token& end) {
  const auto start = std::chrono::steady_clock::now();
  bool drawn = false;
  while (!end.stop_requested()) {
    const int signal = sigtimedwait(&signals_, nullptr, &kPause);
    if (signal > 0 && signal != kWake) {
      signal_ = signal;
      interrupted_.request_stop();
      continue;
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (!terminal_ || end.stop_requested() || elapsed.count() < 1 || interrupted_.stop_requested()) continue;
    const auto share = counting_.share();
    const std::string done = share ? fmt::format(": {:.0f} %", 100 * *share) : "";
    std::fputs(fmt::format("{}{}{}, {:.0f} s", kClearLine, safe_line(what_), done, elapsed.count()).c_str(), stderr);
    std::fflush(stderr);
    drawn = true;
  }
  if (drawn) std::fputs(kClearLine, stderr);
}

}  // namespace qkv::cli
