#include "qkv/commands/watch.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/labels.h"
#include "qkv/say.h"
#include "qkv/terminal.h"

namespace qkv::cli {

namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int kWake = SIGUSR2;              // ends the watcher's sleep
constexpr timespec kPause{0, 100'000'000};  // a tenth of a second: soon enough for the eye
constexpr const char* kClearLine = "\r\x1b[K";

/// nohup, and shells that start something in the background.
bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// As if the signal had not been caught.
[[noreturn]] void end_by(int signal) {
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  std::raise(signal);
  std::abort();
}

}  // namespace

Watch::Watch(std::string command) : command_(std::move(command)), redraws_(stderr_redraws()) {
  sigemptyset(&signals_);
  sigaddset(&signals_, kWake);
  for (const int signal : kSignals) {
    if (!is_ignored(signal)) sigaddset(&signals_, signal);
  }
  // Threads inherit the mask, so the watcher alone sees these signals.
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  watcher_ = std::jthread([this](const std::stop_token& end) { look(end); });
}

Watch::~Watch() {
  watcher_.request_stop();
  pthread_kill(watcher_.native_handle(), kWake);
  watcher_.join();
  clear();
  if (signal_ != 0) end_by(signal_);  // everything was saved by then, or failed for another reason
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Watch::say(std::string_view note) {
  const std::lock_guard lock(mutex_);
  clear();
  cli::say(command_, note);
}

void Watch::say_when_interrupted(std::string note) {
  const std::lock_guard lock(mutex_);
  when_interrupted_ = std::move(note);
}

void Watch::save(const std::function<void(const std::stop_token& stop)>& write) {
  enter(Phase::kSaving);
  try {
    write(stop_.get_token());
  } catch (const Cancelled&) {
    const std::lock_guard lock(mutex_);
    interrupt(signal_);
  }
  enter(Phase::kSaved);
}

void Watch::enter(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
}

void Watch::look(const std::stop_token& end) {
  const auto start = std::chrono::steady_clock::now();
  while (!end.stop_requested()) {
    const int signal = sigtimedwait(&signals_, nullptr, &kPause);
    if (signal > 0 && signal != kWake) meet(signal);
    if (end.stop_requested()) return;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (redraws_ && elapsed.count() >= 1) draw(elapsed.count());
  }
}

void Watch::meet(int signal) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kSaving || signal_ != 0) interrupt(signal);
  signal_ = signal;
  stop_.request_stop();
}

void Watch::draw(double elapsed) {
  const std::lock_guard lock(mutex_);
  const std::string part = progress_.text();
  std::fputs(fmt::format("{}{}{}{}, {:.0f} s", kClearLine, command_, part.empty() ? "" : ": ", safe_line(part), elapsed)
                 .c_str(),
             stderr);
  std::fflush(stderr);
  drawn_ = true;
}

void Watch::clear() {
  if (std::exchange(drawn_, false)) std::fputs(kClearLine, stderr);
}

void Watch::interrupt(int signal) {
  clear();
  if (phase_ != Phase::kSaved) cli::say(command_, when_interrupted_);
  end_by(signal);
}

}  // namespace qkv::cli
