// Long work: a line that says how far it is, and Ctrl-C.
#pragma once
#include <csignal>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "qkv/progress.h"

namespace qkv::cli {

/// Watches over a command from its start until its result is complete. SIGINT, SIGTERM and SIGHUP end the process by that
/// signal, so that a shell's loop ends too: at once, whatever runs, but for save(). On a terminal a line on stderr says how
/// far the work is, from the first second on.
class Watch {
 public:
  explicit Watch(std::string command);  ///< "qkv see"
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Progress& progress() { return progress_; }
  /// "qkv see: note" on a line of stderr.
  void say(std::string_view note);
  /// What is said where a signal ends the command before its result is complete, instead of "interrupted, nothing was written".
  void say_when_interrupted(std::string note);
  /// Calls write(stop), during which a signal requests the stop, so that nothing half-written stays; a second one ends the
  /// process at once.
  void save(const std::function<void(const std::stop_token& stop)>& write);

 private:
  enum class Phase : uint8_t { kWorking, kSaving, kSaved };
  void enter(Phase phase);
  void look(const std::stop_token& end);
  void meet(int signal);
  void draw(double elapsed);
  void clear();
  [[noreturn]] void interrupt(int signal);

  std::string command_;
  Progress progress_;
  sigset_t signals_, before_;
  bool redraws_;
  std::mutex mutex_;  // of what follows, and of the terminal's line
  Phase phase_ = Phase::kWorking;
  bool drawn_ = false;
  int signal_ = 0;  // that came while saving
  std::string when_interrupted_ = "interrupted, nothing was written";
  std::stop_source stop_;
  std::jthread watcher_;
};

}  // namespace qkv::cli
