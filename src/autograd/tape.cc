#include <cstring>
#include <utility>

#include "autograd/node.h"
#include "autograd/rows.h"
#include "core/format.h"
#include "qkv/autograd.h"
#include "qkv/dropout.h"
#include "qkv/error.h"

namespace qkv::nn {

using detail::Node;

std::byte* Node::gradient_data() const {
  return parameter ? static_cast<std::byte*>(parameter->gradient.data()) : gradient.data();
}

void Node::begin_gradient(bool zero) {
  if (parameter) {
    if (parameter->gradient.size() != size || parameter->gradient.dtype() != dtype)
      parameter->gradient = Array(dtype, parameter->value.shape());
    parameter->is_reached = true;
  } else {
    if (!gradient.data()) gradient = Pool::Block(pool, bytes());
    has_gradient = true;
  }
  if (zero) std::memset(gradient_data(), 0, bytes());
}

Parameter::Parameter(DType dtype, std::vector<int64_t> shape) : value(dtype, std::move(shape)) {}

// ---- Variable ----

DType Variable::dtype() const { return node_->dtype; }
bool Variable::needs_gradient() const { return node_ && node_->needs_gradient; }

namespace {

/// The element that lies the furthest from the first.
int64_t last_of(const Layout& layout) {
  int64_t last = 0;
  for (int axis = 0; axis < layout.rank; ++axis)
    last += (layout.shape[size_t(axis)] - 1) * layout.strides[size_t(axis)];
  return last;
}

}  // namespace

View<const void> Variable::value() const { return to_write(); }

View<void> Variable::to_write() const {
  return {node_->numbers + offset_ * int64_t(size_of(node_->dtype)), node_->dtype, layout_};
}

View<const void> Variable::gradient() const {
  if (!node_ || !node_->has_some_gradient()) return {};
  return View<void>{node_->gradient_data() + offset_ * int64_t(size_of(node_->dtype)), node_->dtype, layout_};
}

Variable Variable::seen_as(const Layout& layout, int64_t offset) const {
  offset += offset_;
  if (layout.size() > 0 && (offset < 0 || offset + last_of(layout) >= node_->size))
    shape_error("seen_as: {} from element {} on reaches beyond the {} elements that there are; shorten it", layout,
                offset, node_->size);
  return {node_, layout, offset};
}

Variable::Sink Variable::sink() const {
  if (!needs_gradient()) return {};
  const bool is_first = !node_->has_some_gradient(), is_whole = layout_.size() == node_->size;
  if (is_first) node_->begin_gradient(!is_whole);
  return {{node_->gradient_data() + offset_ * int64_t(size_of(node_->dtype)), node_->dtype, layout_},
          !is_first || !is_whole};
}

std::vector<Variable::Sink> Variable::sinks(std::span<const Variable> parts) {
  int64_t together = 0;
  bool are_one = true;
  for (const Variable& part : parts) {
    are_one = are_one && part.node_ == parts[0].node_;
    together += part.layout_.size();
  }
  const bool writes_all =
      are_one && parts[0].needs_gradient() && together == parts[0].node_->size && !parts[0].node_->has_some_gradient();
  if (writes_all) parts[0].node_->begin_gradient(false);
  std::vector<Sink> sinks;
  for (const Variable& part : parts) {
    sinks.push_back(part.sink());
    if (writes_all) sinks.back().add = false;
  }
  return sinks;
}

// ---- Tape ----

Tape::Tape(const TapeOptions& options) : options_(options), pool_(std::make_shared<detail::Pool>()) {}
Tape::~Tape() = default;
size_t Tape::bytes() const { return pool_->used(); }
size_t Tape::peak_bytes() const { return pool_->peak(); }
void Tape::reset_peak() { pool_->reset_peak(); }

namespace {

std::shared_ptr<Node> lent(const std::shared_ptr<detail::Pool>& pool, View<const void> numbers) {
  auto node = std::make_shared<Node>();
  node->pool = pool;
  node->dtype = numbers.dtype;
  node->size = numbers.size();
  node->numbers =
      const_cast<std::byte*>(static_cast<const std::byte*>(numbers.data));  // written by nobody: no sink, no maker
  return node;
}

void expect_contiguous(const char* function, const Layout& layout) {
  if (!is_contiguous(layout)) shape_error("{}: the tensor {} is not contiguous; copy it", function, layout);
}

}  // namespace

Variable Tape::constant(View<const void> numbers) const { return {lent(pool_, numbers), numbers}; }

Variable Tape::leaf(View<const void> numbers) const {
  expect_contiguous("leaf", numbers);
  auto node = lent(pool_, numbers);
  node->needs_gradient = true;
  return {std::move(node), numbers};
}

Variable Tape::use(Parameter& parameter) const {
  auto node = lent(pool_, parameter.value.view());
  node->needs_gradient = is_recording();
  node->parameter = &parameter;
  return {std::move(node), parameter.value.view()};
}

Variable Tape::make(const Layout& shape, DType dtype) {
  auto node = std::make_shared<Node>();
  node->pool = pool_;
  node->dtype = dtype;
  node->size = shape.size();
  node->value = detail::Pool::Block(pool_, node->bytes());
  node->numbers = node->value.data();
  return {std::move(node), Layout(std::span<const int64_t>(shape.shape).first(size_t(shape.rank)))};
}

void Tape::record(std::initializer_list<Variable> made, std::initializer_list<Variable> from,
                  std::function<void()> back) {
  record(std::span(made.begin(), made.size()), std::span(from.begin(), from.size()), std::move(back));
}

void Tape::record(std::span<const Variable> made, std::span<const Variable> from, std::function<void()> back) {
  if (!is_recording()) return;
  bool is_needed = false;
  for (const Variable& x : from) is_needed = is_needed || x.needs_gradient();
  if (!is_needed) return;
  Record record{{}, std::move(back)};
  for (const Variable& y : made) {
    y.node_->needs_gradient = true;
    record.made.push_back(y.node_);
  }
  records_.push_back(std::move(record));
}

void Tape::go_back(size_t first) {
  while (records_.size() > first) {
    const Record record = std::move(records_.back());
    records_.pop_back();
    bool is_reached = false;
    for (const auto& node : record.made) is_reached = is_reached || node->has_some_gradient();
    if (is_reached) record.back();
  }
}

void Tape::backward(const Variable& loss, double factor) {
  if (loss.layout().size() != 1)
    shape_error("backward: the loss is {}, expected one element; sum it, or give the gradient by it", loss.layout());
  if (records_.empty())
    option_error("backward: nothing was recorded; compute the loss with training = true from parameters");
  const Variable::Sink sink = loss.sink();
  if (sink.view.dtype == DType::kFloat64) *sink.view.as<double>().data = factor;
  else if (sink.view.dtype == DType::kFloat32) *sink.view.as<float>().data = float(factor);
  else
    dtype_error("backward: the loss is {}, expected float32 or float64; losses are not stored in 16 bits",
                sink.view.dtype);
  go_back(0);
}

void Tape::backward(const Variable& y, View<const void> gradient) {
  if (records_.empty()) option_error("backward: nothing was recorded; compute y with training = true from parameters");
  if (gradient.dtype != y.dtype())
    dtype_error("backward: y is {} and the gradient by it {}; convert one of them", y.dtype(), gradient.dtype);
  if (gradient.rank != y.layout().rank || gradient.shape != y.layout().shape)
    shape_error("backward: y is {} and the gradient by it {}; they have one shape", y.layout(), gradient);
  expect_contiguous("backward", gradient);
  expect_contiguous("backward", y.layout());
  const Variable::Sink sink = y.sink();
  std::memcpy(sink.view.data, gradient.data, size_t(gradient.size()) * size_of(gradient.dtype));
  go_back(0);
}

void Tape::restart(uint64_t seed) {
  records_.clear();
  options_.seed = seed;
  draws_ = 0;
}

uint64_t Tape::next_seed() {
  const auto bits = philox({uint32_t(draws_), uint32_t(draws_ >> 32), 0, 0}, options_.seed);
  ++draws_;
  return bits[0] | uint64_t{bits[1]} << 32;
}

// ---- checkpoint ----

Variable Tape::checkpoint(std::span<const Variable> inputs, const Segment& segment) {
  if (!is_recording()) return segment(*this, inputs);
  const uint64_t draws = draws_;
  ++paused_;
  Variable y;
  try {
    y = segment(*this, inputs);
  } catch (...) {
    --paused_;
    throw;
  }
  --paused_;
  y.node_->needs_gradient = true;
  std::vector<Variable> kept(inputs.begin(), inputs.end());
  const auto back = [this, draws, segment, kept = std::move(kept), node = std::weak_ptr(y.node_)] {
    const size_t first = records_.size();
    const uint64_t later = std::exchange(draws_, draws);
    const Variable again = segment(*this, kept);
    draws_ = later;
    const auto made = node.lock();
    again.node_->gradient = std::move(made->gradient);
    again.node_->has_gradient = true;
    made->has_gradient = false;
    go_back(first);
  };
  records_.push_back({{y.node_}, back});
  return y;
}

}  // namespace qkv::nn
