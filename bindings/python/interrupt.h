// Long calls that Ctrl-C ends.
#pragma once
#include <nanobind/nanobind.h>

#include <functional>

#include "qkv/executor.h"

namespace qkv::python {

/// The pool of all calls from now on; until then qkv's own.
void set_num_threads(int threads);
int num_threads();

/// Runs work(call) without the interpreter's lock. Where it is long (by its number of operations) and this is the main thread, it
/// runs beside it, so that signals are handled within a tenth of a second; a handler that raises stops the work, and what it
/// raised goes on. Otherwise in this thread.
void run(double operations, const std::function<void(const Call&)>& work);

}  // namespace qkv::python
