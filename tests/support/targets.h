// Running a test once for every instruction set that this machine and this build have.
#pragma once
#include <hwy/targets.h>

#include <set>
#include <string>

#include "tests/support/case.h"

namespace qkv::testing {

/// Makes the library use one instruction set until the end of the scope; then it chooses for itself again.
class OnlyTarget {
 public:
  explicit OnlyTarget(int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~OnlyTarget() { hwy::SetSupportedTargetsForTest(0); }
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;
};

/// The name of the instruction set that a call would use now.
inline std::string instruction_set() {
  const Example e(Case{});
  return find_path(e.attention, e.inputs()).instruction_set;
}

/// f(name) with each instruction set in turn. One that the library was not compiled for falls back to another: run once.
template <class F> void each_instruction_set(F f) {
  std::set<std::string> done;
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    const OnlyTarget only(rest & -rest);
    const std::string name = instruction_set();
    if (done.insert(name).second) f(name);
  }
}

}  // namespace qkv::testing
