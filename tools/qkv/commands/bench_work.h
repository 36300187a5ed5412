// What `qkv bench` measures: the shapes, and one shape with its tensors.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "qkv/backward.h"

namespace qkv::cli {

enum class Work : uint8_t { kForward, kBackward, kTraining };  ///< kTraining: forward(), then backward()
enum class Extra : uint8_t { kNone, kDropout, kOwnModifier, kBias, kBiasWithGradient };

struct Shape {
  const char* name;
  int batch, heads, key_heads, queries, keys, dim;
  bool causal = false;
  Work work = Work::kForward;
  Extra extra = Extra::kNone;
  bool decode() const { return queries == 1; }
};
std::span<const Shape> bench_shapes();

/// Tensors of a shape, ready to run. Random numbers, the same every time.
class Bench {
 public:
  Bench(const Shape&, const Call&);
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const Path& path() const { return path_; }
  double operations() const;  ///< of one run: 4 D for every visible pair forward, 10 D backward
  double bytes() const;       ///< of keys and values
  /// Runs once and compares a few rows, and the gradients of a loss by them, with the oracle. Returns the largest difference
  /// relative to the largest value. Throws Error where that is no rounding error.
  double check();
  void run();

 private:
  void run_forward();
  void run_backward(View<const void> dout);
  double error_of_rows() const;
  double error_of_gradients();

  const Shape& shape_;
  const Call& call_;
  Attention attention_;
  std::vector<float> query_, key_, value_, bias_, dout_, out_, row_max_, row_sum_, dquery_, dkey_, dvalue_, dbias_;
  Inputs inputs_;
  Outputs outputs_;
  Gradients gradients_;
  Path path_;
};

}  // namespace qkv::cli
