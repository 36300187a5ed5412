// Derivatives: numbers that learn, and a tape on which operations write how to differentiate them.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qkv/array.h"
#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv::nn {

namespace detail {
struct Node;
struct Packs;
class Pool;
}  // namespace detail

/// Numbers that learn. It has one place in memory, to which variables refer.
struct QKV_EXPORT Parameter {
  Parameter() = default;
  Parameter(DType, std::vector<int64_t> shape);  ///< zeros
  Parameter(Parameter&&) = default;              ///< not while variables refer to it
  Parameter& operator=(Parameter&&) = default;

  Array value;
  Array gradient;           ///< d loss / d value, of its shape and type; no tensor before the first backward()
  bool is_reached = false;  ///< backward() has written `gradient` since it was last forgotten
  bool decays = true;       ///< whether weight decay acts on it: false for norms and biases
  uint64_t version = 0;     ///< counts changes of `value`, so that copies in other layouts know when they are old

  /// Copies in the order in which products read them, made by linear().
  std::shared_ptr<detail::Packs> packs{};
  /// To be called after `value` was written.
  void changed() { ++version; }
  /// The next backward() replaces the gradient instead of adding to it.
  void forget_gradient() { is_reached = false; }
};

/// A tensor that was computed, or a part of one. Cheap to copy; what it refers to lives as long as it does.
class QKV_EXPORT Variable {
 public:
  Variable() = default;  ///< none
  explicit operator bool() const { return node_ != nullptr; }

  const Layout& layout() const { return layout_; }
  int64_t shape(int axis) const { return layout_.shape[size_t(axis)]; }
  DType dtype() const;
  View<const void> value() const;
  /// d loss / d value; an absent view where backward() has brought none.
  View<const void> gradient() const;
  bool needs_gradient() const;

  /// The same elements under another layout, which begins `offset` elements further on. Throws ShapeError where it would reach
  /// beyond them.
  Variable seen_as(const Layout&, int64_t offset = 0) const;
  /// Whether both have the same first element.
  bool begins_with(const Variable& other) const { return node_ == other.node_ && offset_ == other.offset_; }

  // ---- for operations ----
  View<void> to_write() const;  ///< the value, once, where it is made
  /// Where d loss / d value goes. `add`: something is there already, and the operation adds to it.
  struct Sink {
    View<void> view{};
    bool add = false;
  };
  /// An absent view where no gradient is needed. Each call stands for one contribution, which the caller makes.
  Sink sink() const;
  /// The sinks of parts that lie in one tensor and are written by one operation: without zeros in between where together they
  /// cover it.
  static std::vector<Sink> sinks(std::span<const Variable> parts);

 private:
  friend class Tape;
  Variable(std::shared_ptr<detail::Node> node, const Layout& layout, int64_t offset = 0)
      : node_(std::move(node)), layout_(layout), offset_(offset) {}
  std::shared_ptr<detail::Node> node_;
  Layout layout_;
  int64_t offset_ = 0;
};

/// How the operations of a tape run.
struct TapeOptions {
  Call call{};
  bool training = true;             ///< false: nothing is recorded and nothing is dropped
  uint64_t seed = 0;                ///< of dropout
  DType storage = DType::kFloat32;  ///< of what operations make: float64, or a 16-bit type for mixed precision
};

/// Records operations as they run, and goes back through them. Memory of one step is used again by the next: from the second
/// equal step on nothing is allocated but the records themselves. Not for use by two threads at the same time.
class QKV_EXPORT Tape {
 public:
  explicit Tape(const TapeOptions& = {});
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const TapeOptions& options() const { return options_; }
  const Call& call() const { return options_.call; }
  DType storage() const { return options_.storage; }
  bool training() const { return options_.training; }

  /// Numbers that the caller keeps as long as variables refer to them; without a gradient, or with one.
  Variable constant(View<const void> numbers) const;
  Variable leaf(View<const void> numbers) const;
  /// The numbers of a parameter; its gradient goes to Parameter::gradient.
  Variable use(Parameter&) const;

  /// Goes back from a loss of one element: d factor * loss / d x for every x that it depends on. What was recorded is forgotten
  /// on the way, and memory given back as soon as nothing refers to it. Gradients of parameters add to those of earlier calls
  /// since forget_gradient(). Throws ShapeError for more than one element, OptionError where nothing was recorded.
  void backward(const Variable& loss, double factor = 1);
  /// The same from any tensor, given the gradient by it.
  void backward(const Variable& y, View<const void> gradient);
  using Segment = std::function<Variable(Tape&, std::span<const Variable>)>;
  /// segment(*this, inputs), of which nothing but the inputs and the result is kept: backward() computes it once more. The same
  /// gradients to the last bit, dropout drawn again. The segment may use parameters, but of variables its arguments only.
  /// Chen, Xu, Zhang, Guestrin 2016, "Training deep nets with sublinear memory cost".
  Variable checkpoint(std::span<const Variable> inputs, const Segment& segment);
  /// Forgets what was recorded; the next step draws with this seed.
  void restart(uint64_t seed);

  size_t bytes() const;       ///< of tensors that are in use
  size_t peak_bytes() const;  ///< the most that were, since reset_peak()
  void reset_peak();

  // ---- for operations ----
  /// A tensor for an operation to fill, contiguous.
  Variable make(const Layout& shape, DType);
  /// `back` runs in backward(), if a gradient has come to one of `made` by then. Recorded only where one of `from` needs a
  /// gradient; `made` need one from here on.
  void record(std::initializer_list<Variable> made, std::initializer_list<Variable> from, std::function<void()> back);
  void record(std::span<const Variable> made, std::span<const Variable> from, std::function<void()> back);
  /// Whether record() may do anything.
  bool is_recording() const { return options_.training && paused_ == 0; }
  /// A number for one operation's dropout: another one each time, the same in the same place of each equal step.
  uint64_t next_seed();

 private:
  struct Record {
    std::vector<std::shared_ptr<detail::Node>> made;
    std::function<void()> back;
  };
  void go_back(size_t first);
  TapeOptions options_;
  std::shared_ptr<detail::Pool> pool_;
  std::vector<Record> records_;
  uint64_t draws_ = 0;
  int paused_ = 0;
};

}  // namespace qkv::nn
