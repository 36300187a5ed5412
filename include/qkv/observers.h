// Observers that come with the library. Each writes into views of the caller; all are for observe().
#pragma once
#include <cstdint>
#include <memory>

#include "qkv/pass.h"
#include "qkv/view.h"

namespace qkv {

/// Attention received: received[b, h, j] = sum over the queries of w[b, h, i, j]. {B, Hq, S} double, set to 0
/// by the constructor.
class QKV_EXPORT Received final : public passes::Observer {
 public:
  explicit Received(View<double> received);
  void begin(const Extents& weights) override;
  std::unique_ptr<passes::Observer> fork() const override;
  void see(const Tile<const float>&) override;
  void see(const Tile<const double>&) override;
  void join(const passes::Observer&) override;

 private:
  View<double> received_;
};

/// For pictures of any length: the largest and the mean weight of each cell of `cell` x `cell` pairs.
/// largest, mean {B, Hq, ceil(L / cell), ceil(S / cell)} float, set to 0 by the constructor. `cell` is a power of two, at most 2048;
/// hidden pairs count as 0, and the mean is over the pairs that lie in the matrix.
class QKV_EXPORT Pyramid final : public passes::Observer {
 public:
  /// Throws ShapeError where the views do not fit `queries`, `keys` and `cell`, OptionError for a bad `cell`.
  Pyramid(View<float> largest, View<float> mean, int64_t queries, int64_t keys, int cell);
  static constexpr int kLargestCell = 2048;
  /// The smallest cell for which the picture has at most `limit` rows and columns, kLargestCell where none does.
  static int cell_for(int64_t queries, int64_t keys, int limit);
  void begin(const Extents& weights) override;
  std::unique_ptr<passes::Observer> fork() const override;
  void see(const Tile<const float>&) override;
  void see(const Tile<const double>&) override;
  void join(const passes::Observer&) override;

 private:
  View<float> largest_, mean_;
  int64_t queries_, keys_;
  int cell_;
};

}  // namespace qkv
