// The attention as an operation: forward() and backward() wired to a tape.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/format.h"
#include "qkv/backward.h"
#include "qkv/operations.h"

namespace qkv::nn {
namespace {

Inputs inputs_of(const AttentionVariables& in) {
  Inputs all = in.rest;
  const auto set = [](View<const void>& view, const Variable& x) {
    if (x) view = x.value();
  };
  set(all.query, in.query), set(all.key, in.key), set(all.value, in.value);
  set(all.bias, in.bias), set(all.alibi_slopes, in.alibi_slopes), set(all.sinks, in.sinks);
  for (const auto& [name, x] : in.named) all.parameters.push_back({name, x.value()});
  return all;
}

std::vector<Variable> variables_of(const AttentionVariables& in) {
  std::vector<Variable> all;
  for (const Variable& x : {in.query, in.key, in.value, in.bias, in.alibi_slopes, in.sinks})
    if (x) all.push_back(x);
  for (const auto& [name, x] : in.named) all.push_back(x);
  return all;
}

void clear(const View<void>& view) {
  const size_t element = size_of(view.dtype);
  for (int64_t a = 0; a < view.shape[0]; ++a)
    for (int64_t b = 0; b < view.shape[1]; ++b)
      for (int64_t c = 0; c < view.shape[2]; ++c)
        for (int64_t d = 0; d < view.shape[3]; ++d)
          std::memset(static_cast<std::byte*>(view.data) + view.offset(a, b, c, d) * int64_t(element), 0, element);
}

/// What one call of backward() writes: it replaces everything or adds to everything, so what is new gets zeros where the rest is
/// added to.
class Targets {
 public:
  View<void> take(const Variable::Sink& sink) {
    gradients.add = gradients.add || (sink.view && sink.add);
    if (sink.view && !sink.add) fresh_.push_back(sink.view);
    is_empty = is_empty && !sink.view;
    return sink.view;
  }
  void prepare() {
    if (!gradients.add) return;
    for (const View<void>& view : fresh_) clear(view);
  }
  Gradients gradients{};
  bool is_empty = true;

 private:
  std::vector<View<void>> fresh_;
};

/// One call, and more where a tensor is query, key and value at once, as its gradient is a sum then.
std::array<Targets, 3> targets_of(const AttentionVariables& in) {
  const Variable heads[] = {in.query, in.key, in.value};
  View<void> Gradients::*const fields[] = {&Gradients::dquery, &Gradients::dkey, &Gradients::dvalue};
  const auto sinks = Variable::sinks(heads);
  std::array<Targets, 3> calls;
  for (size_t n = 0; n < 3; ++n) {
    const auto call =
        size_t(std::count_if(heads, heads + n, [&](const Variable& x) { return x.begins_with(heads[n]); }));
    calls[call].gradients.*fields[n] = calls[call].take(sinks[n]);
  }
  Targets& first = calls[0];
  first.gradients.dbias = first.take(in.bias.sink());
  first.gradients.dalibi_slopes = first.take(in.alibi_slopes.sink());
  first.gradients.dsinks = first.take(in.sinks.sink());
  for (const auto& [name, x] : in.named)
    if (const auto view = first.take(x.sink())) first.gradients.dparameters.push_back({name, view});
  return calls;
}

}  // namespace

AttentionWatcher::~AttentionWatcher() = default;

Variable attend(Tape& tape, const Attention& attention, const AttentionVariables& in) {
  Inputs inputs = inputs_of(in);
  if (tape.training() && attention.dropout() > 0 && !inputs.dropout_keep) inputs.dropout_seed = tape.next_seed();
  if (!in.query || inputs.query.rank != 4 || inputs.value.rank != 4)
    shape_error("attend: query is {} and value {}, expected {{B, heads, rows, width}} of both", inputs.query,
                inputs.value);
  const int64_t b = in.query.shape(0), h = in.query.shape(1), l = in.query.shape(2), width = inputs.value.shape[3];
  const int64_t sizes[] = {b, l, h * width};
  const Variable out = tape.make(Layout(sizes), in.query.dtype());
  const int64_t head_sizes[] = {b, h, l, width}, head_steps[] = {l * h * width, width, h * width, 1};
  const Variable heads = out.seen_as(Layout(head_sizes, head_steps));
  if (!tape.is_recording()) {
    forward(attention, inputs, {.out = heads.to_write(), .weights = in.weights}, tape.call());
    return out;
  }
  const Layout rows(std::span<const int64_t>(head_sizes).first(3));
  const DType sums = in.query.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const Variable row_max = tape.make(rows, sums), row_sum = tape.make(rows, sums);
  const auto facts = in.watcher ? in.watcher->begin(inputs) : std::nullopt;
  forward(attention, inputs,
          {.out = heads.to_write(),
           .row_max = row_max.to_write(),
           .row_sum = row_sum.to_write(),
           .rows = facts.value_or(qkv::RowStatistics{}),
           .weights = in.weights},
          tape.call());
  if (facts) in.watcher->end(attention, inputs, {row_max.value(), row_sum.value()}, tape.call());
  const auto from = variables_of(in);
  const Variable made[] = {out};
  tape.record(made, from, [&tape, attention, in, heads, row_max, row_sum, seed = inputs.dropout_seed] {
    Inputs again = inputs_of(in);
    again.dropout_seed = seed;
    const Upstream up{
        .out = heads.value(), .dout = heads.gradient(), .row_max = row_max.value(), .row_sum = row_sum.value()};
    for (Targets& targets : targets_of(in)) {
      if (targets.is_empty) continue;
      targets.prepare();
      backward(attention, again, up, targets.gradients, tape.call());
    }
  });
  return out;
}

}  // namespace qkv::nn
