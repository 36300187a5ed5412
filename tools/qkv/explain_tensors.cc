// The table of all tensors that an explanation begins with.
#include <array>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "qkv/explain.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

void add_row_sums(View<const void> x, const Call& call, TensorFacts& facts) {
  const int last = x.rank - 1;
  std::array<int64_t, 3> size = {1, 1, 1};
  for (int axis = 0; axis < last; ++axis) size[static_cast<size_t>(axis)] = x.shape[static_cast<size_t>(axis)];
  facts.lowest = std::numeric_limits<double>::infinity();
  facts.highest = -facts.lowest;
  facts.rows = size[0] * size[1] * size[2];
  const auto at = [&](std::array<int64_t, 4> index) { return element(x, index[0], index[1], index[2], index[3]); };
  for (int64_t row = 0; row < facts.rows; ++row) {
    std::array<int64_t, 4> index = {row / (size[1] * size[2]), row / size[2] % size[1], row % size[2], 0};
    double sum = 0;
    stop_point(call.stop);
    for (int64_t n = 0; n < x.shape[static_cast<size_t>(last)]; ++n) {
      index[static_cast<size_t>(last)] = n;
      sum += at(index);
    }
    if (facts.rows <= 4) facts.row_sums.push_back(sum);
    if (std::isfinite(sum)) facts.lowest = std::min(facts.lowest, sum), facts.highest = std::max(facts.highest, sum);
    else ++facts.other_rows;
  }
}

}  // namespace

std::vector<TensorFacts> facts_of_tensors(const Problem& p, std::span<const NamedTensor> others, const Call& call) {
  std::vector<TensorFacts> all;
  const auto add = [&](std::string_view name, View<const void> x) {
    if (!x) return;
    TensorFacts facts;
    facts.name = name;
    facts.type = qkv::name(x.dtype);
    facts.shape = shape_text(x);
    facts.bytes = x.size() * static_cast<int64_t>(size_of(x.dtype));
    if (is_floating(x.dtype)) add_row_sums(x, call, facts);
    all.push_back(std::move(facts));
  };
  if (p.projections) {
    const Projections& j = *p.projections;
    add("x", j.x), add("wq", j.wq), add("wk", j.wk), add("wv", j.wv), add("wo", j.wo);
  }
  const Inputs& in = p.inputs;
  add("q", in.query), add("k", in.key);
  if (p.sizes.value_dim > 0) add("v", in.value);
  add("keep_mask", in.keep_mask), add("ignore_mask", in.ignore_mask), add("bias", in.bias);
  add("alibi_slopes", in.alibi_slopes), add("sinks", in.sinks);
  add("query_documents", in.query_documents), add("key_documents", in.key_documents);
  for (const Named& parameter : in.parameters) add(parameter.name, parameter.view);
  for (const NamedTensor& other : others) add(other.name, other.view);
  return all;
}

}  // namespace qkv::cli
