#include "qkv/progress.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "qkv/error.h"

namespace qkv::cli {

void Progress::begin(std::string part, int64_t items) {
  if (call_.stop.stop_requested()) throw Cancelled("cancelled");
  const std::lock_guard lock(mutex_);
  part_ = std::move(part);
  expect(items);
}

void Progress::expect(int64_t items) {
  done_ = 0;
  expected_ = items;
}

void Progress::forward(const Attention& attention, const Inputs& inputs, const Outputs& outputs) {
  expect(find_path(attention, inputs, call()).work_items);
  qkv::forward(attention, inputs, outputs, call());
  expect(0);
}

std::string Progress::text() const {
  const std::lock_guard lock(mutex_);
  const int64_t expected = expected_;
  if (expected <= 0) return part_;
  const double share = static_cast<double>(done_) / static_cast<double>(expected);
  return fmt::format("{}{}{:.0f} %", part_, part_.empty() ? "" : ": ", 100 * std::min(1.0, share));
}

void Progress::parallel_for(int64_t items, void (*run)(void* context, int64_t item), void* context) {
  struct Counted {
    void (*run)(void*, int64_t);
    void* context;
    Progress* progress;
  } counted{run, context, this};
  executor().parallel_for(
      items,
      [](void* p, int64_t n) {
        const auto& c = *static_cast<Counted*>(p);
        c.run(c.context, n);
        c.progress->advance();
      },
      &counted);
}

}  // namespace qkv::cli
