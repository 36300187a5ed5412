// How drivers of matrices cut work and lend scratch to it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/parallel.h"
#include "core/workspace.h"
#include "qkv/view.h"

namespace qkv::nn {

/// The part [first, last) of [0, n) that is number `part` of `parts` nearly equal ones.
struct Part {
  int64_t first, last;
  Part(int64_t n, int64_t part, int64_t parts) : first(n * part / parts), last(n * (part + 1) / parts) {}
  int64_t size() const { return last - first; }
};

/// The address of an element.
template <class Void> Void* at(const qkv::detail::ErasedView<Void>& v, int64_t a, int64_t b = 0) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(v.data) + v.offset(a, b) * int64_t(size_of(v.dtype));
}

/// How many work items may run at the same time.
inline int at_once(const Call& call, int64_t items) {
  Executor& executor = call.executor ? *call.executor : default_executor();
  return int(std::min<int64_t>(executor.concurrency(), items));
}

/// Runs f(item, scratch) for every item; `bytes` of scratch are the item's own while it runs.
template <class F> void parallel_with_scratch(const Call& call, int64_t items, size_t bytes, F f) {
  if (bytes == 0) return parallel(call, items, [&](int64_t item) { f(item, static_cast<void*>(nullptr)); });
  WorkspaceOf workspace(call);
  workspace.impl().prepare_leases(at_once(call, items), bytes);
  parallel(call, items, [&](int64_t item) {
    const Workspace::Impl::Lease lease(workspace.impl(), bytes);
    f(item, lease.data());
  });
}

}  // namespace qkv::nn
