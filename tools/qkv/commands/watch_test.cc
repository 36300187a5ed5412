// Long work as a user meets it: the line that says how far it is, and Ctrl-C.
#include "qkv/commands/watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "qkv/command_fixture.h"
#include "qkv/error.h"

namespace qkv::cli {
namespace {

using io::bytes_of;
using io::put_bytes;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::KilledBySignal;
using ::testing::Not;

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// `qkv arguments` in one thread, with its stdout in a file and its stderr on a terminal of its own.
class Child {
 public:
  Child(const std::string& arguments, const std::string& out, const char* term = "xterm") {
    int slave = -1;
    EXPECT_EQ(::openpty(&terminal_, &slave, nullptr, nullptr, nullptr), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(slave, STDERR_FILENO);
      ::close(slave);
      ::close(terminal_);
      ::setenv("QKV_THREADS", "1", 1);
      ::setenv("TERM", term, 1);
      const std::string line = std::string("exec ") + QKV_COMMAND + " " + arguments + " >" + out;
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(slave);
  }
  ~Child() {
    if (pid_ > 0 && ::kill(pid_, SIGKILL) == 0) ::waitpid(pid_, nullptr, 0);
    ::close(terminal_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Reads the terminal until `text` stands there, or until the command is gone.
  const std::string& wait_for(const std::string& text) {
    while (seen_.find(text) == seen_.npos && read()) {}
    return seen_;
  }
  struct End {
    int status;
    double seconds;
    std::string seen;
  };
  End end_by(int signal) {
    EXPECT_EQ(::kill(pid_, signal), 0);
    const auto start = std::chrono::steady_clock::now();
    int status = 0;
    EXPECT_EQ(::waitpid(std::exchange(pid_, -1), &status, 0) > 0, true);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    while (read()) {}
    return {status, took.count(), seen_};
  }

 private:
  bool read() {
    char buffer[4096];
    const ssize_t got = ::read(terminal_, buffer, sizeof buffer);
    if (got > 0) seen_.append(buffer, static_cast<size_t>(got));
    return got > 0;
  }
  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string seen_;
};

class LongWork : public Command {
 protected:
  /// Minutes for one thread, in a small file: the time grows with the square of the length.
  std::string long_file() const {
    Array x(DType::kFloat32, {1, 4, 400'000, 1});
    for (int64_t n = 0; n < x.size(); ++n) static_cast<float*>(x.data())[n] = std::sin(static_cast<float>(n));
    std::vector<NamedTensor> tensors;
    for (const char* name : {"q", "k", "v", "out"}) tensors.push_back({name, std::as_const(x).view()});
    write_npz(file("long.npz"), tensors);
    return file("long.npz");
  }

  /// Says what it is at from the first second on; then ends by the signal, within a second, and leaves nothing.
  void expect_clean_end(const std::string& arguments, int signal, const std::string& line) const {
    const std::vector<std::string> before = folder_.files();
    Child child(arguments, file("stdout"));
    const std::string drawn = "\r\x1b[K" + line;
    ASSERT_THAT(child.wait_for(drawn), HasSubstr(drawn)) << arguments;
    const Child::End end = child.end_by(signal);
    EXPECT_TRUE(WIFSIGNALED(end.status) && WTERMSIG(end.status) == signal) << arguments << end.status << end.seen;
    EXPECT_LT(end.seconds, 1) << arguments;
    EXPECT_THAT(end.seen, HasSubstr("\r\x1b[Kqkv " + arguments.substr(0, arguments.find(' ')) +
                                    ": interrupted, nothing was written"));
    EXPECT_EQ(bytes_of(file("stdout")), "") << arguments;
    std::remove(file("stdout").c_str());
    EXPECT_THAT(folder_.files(), ::testing::UnorderedElementsAreArray(before)) << arguments;
  }
};

TEST_F(LongWork, OfAttendSaysItsShareAndEndsByTheSignal) {
  const std::string out = file("out.npz");
  put_bytes(out, "before");
  expect_clean_end("attend " + long_file() + " -o " + out, SIGINT, "qkv attend: ");
  EXPECT_EQ(bytes_of(out), "before");
}

TEST_F(LongWork, OfSeeSaysWhichHeadAndEndsByTheSignal) {
  const std::string see = "see " + long_file();
  expect_clean_end(see, SIGINT, "qkv see: all heads: ");
  expect_clean_end(see + " --head 1", SIGTERM, "qkv see: head 1: ");
  expect_clean_end(see + " --png " + file("x.png"), SIGINT, "qkv see: head 0: ");
  expect_clean_end(see + " --head 2 --html " + file("x.html"), SIGHUP, "qkv see: all heads: ");
}

TEST_F(LongWork, OfCompareSaysWhichTensorAndEndsByTheSignal) {
  expect_clean_end("compare " + long_file(), SIGINT, "qkv compare: out in float32: ");
}

TEST_F(LongWork, OfExplainSaysWhichSizeAndEndsByTheSignal) {
  expect_clean_end("explain scaling --dims 65536 --keys 4096 --draws 1000000", SIGINT, "qkv explain: D = 65536: ");
}

TEST_F(LongWork, DrawsNothingOnADumbTerminal) {
  Child child("explain scaling --dims 65536 --keys 4096 --draws 1000000", file("stdout"), "dumb");
  pause(1.5);
  EXPECT_THAT(child.end_by(SIGINT).seen, Not(HasSubstr("\x1b")));
}

TEST_F(LongWork, EndsByTheSignalAlsoWhileAFileDoesNotCome) {
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  const std::string typed = " --q '1,2' --k '2,1' --v " + file("pipe");
  expect_clean_end("explain" + typed, SIGINT, "qkv explain, ");
  expect_clean_end("attend" + typed + " -o " + file("out.npz"), SIGTERM, "qkv attend, ");
}

/// Sends itself a signal and waits until that has asked for a stop.
void wait_for_stop(const std::stop_token& stop) {
  ::kill(::getpid(), SIGINT);
  while (!stop.stop_requested()) pause(0.01);
}

TEST(Watch, LetsAWriterCleanUpBeforeTheEnd) {
  const auto interrupted = [] {
    Watch watch("qkv test");
    watch.save([](const std::stop_token& stop) {
      wait_for_stop(stop);
      std::fputs("cleaned up, ", stderr);
      throw Cancelled("stopped");
    });
  };
  EXPECT_EXIT(interrupted(), KilledBySignal(SIGINT), "^cleaned up, qkv test: interrupted, nothing was written\n$");
}

TEST(Watch, EndsByTheSignalInSilenceWhereEverythingWasWritten) {
  const auto late = [] {
    Watch watch("qkv test");
    watch.save(wait_for_stop);
  };
  EXPECT_EXIT(late(), KilledBySignal(SIGINT), "^$");
}

TEST(Watch, EndsAtTheSecondSignalWhereAWriterHangs) {
  const auto hanging = [] {
    Watch watch("qkv test");
    watch.save([](const std::stop_token& stop) {
      wait_for_stop(stop);
      ::kill(::getpid(), SIGTERM);
      pause(600);
    });
  };
  EXPECT_EXIT(hanging(), KilledBySignal(SIGTERM), "interrupted");
}

TEST(Watch, LeavesAnIgnoredSignalIgnored) {
  const auto nohup = [] {
    std::signal(SIGHUP, SIG_IGN);
    {
      Watch watch("qkv test");
      ::kill(::getpid(), SIGHUP);
      pause(0.3);
    }
    std::exit(0);
  };
  EXPECT_EXIT(nohup(), ::testing::ExitedWithCode(0), "^$");
}

}  // namespace
}  // namespace qkv::cli
