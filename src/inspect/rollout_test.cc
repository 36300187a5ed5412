#include <gtest/gtest.h>

#include "qkv/error.h"
#include "qkv/heads.h"
#include "tests/support/message.h"
#include "tests/support/tensor.h"

namespace qkv {
namespace {

using testing::message_of;
using testing::Placement;
using testing::Tensor;
using testing::tensor;

Tensor rollout_of(const Tensor& layers) {
  const int64_t length = layers.layout().shape[1];
  Tensor out(DType::kFloat64, {length, length});
  rollout(layers.view(), out.view());
  return out;
}

TEST(Rollout, MultipliesNormalisedLayersFromTheLastToTheFirst) {
  // (A + I) / 2 by rows: {.9 .1; .25 .75} and {.5 .5; 0 1}; the product of the second with the first
  const Tensor out = rollout_of(tensor(DType::kFloat64, {2, 2, 2}, {0.8, 0.2, 0.5, 0.5, 0, 1, 0, 1}));
  EXPECT_NEAR(out.get(0, 0), 0.5 * 0.9 + 0.5 * 0.25, 1e-15);
  EXPECT_NEAR(out.get(0, 1), 0.5 * 0.1 + 0.5 * 0.75, 1e-15);
  EXPECT_NEAR(out.get(1, 0), 0.25, 1e-15);
  EXPECT_NEAR(out.get(1, 1), 0.75, 1e-15);
}

TEST(Rollout, DividesEveryRowByItsOwnSum) {
  Tensor layers(DType::kFloat32, {3, 5, 5}, Placement::kTransposed);
  layers.normal(4).fill([&](auto... i) { return std::abs(layers.get(i...)); });  // rows that do not sum to 1
  const Tensor out = rollout_of(layers);
  for (int64_t i = 0; i < 5; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < 5; ++j) sum += out.get(i, j);
    EXPECT_NEAR(sum, 1, 1e-14);
  }
}

TEST(Rollout, OfOneLayerThatLooksAtNothingIsTheIdentity) {
  const Tensor out = rollout_of(tensor(DType::kFloat32, {1, 2, 2}, {0, 0, 0, 0}));
  EXPECT_EQ(out.get(0, 0), 1);
  EXPECT_EQ(out.get(0, 1), 0);
}

TEST(Rollout, OfNoLayersIsTheIdentity) {
  const Tensor out = rollout_of(Tensor(DType::kFloat32, {0, 2, 2}));
  EXPECT_EQ(out.get(1, 1), 1);
  EXPECT_EQ(out.get(1, 0), 0);
}

TEST(RolloutErrors, NameExpectedAndGot) {
  const Tensor layers(DType::kFloat32, {1, 2, 2}), oblong(DType::kFloat32, {1, 2, 3}), half(DType::kFloat16, {1, 2, 2});
  Tensor out(DType::kFloat32, {2, 2}), small(DType::kFloat32, {1, 2});
  EXPECT_EQ(message_of<ShapeError>([&] { rollout(oblong.view(), out.view()); }),
            "rollout: layers has shape {1, 2, 3}, expected {layers, length, length}; fuse the heads first");
  EXPECT_EQ(message_of<ShapeError>([&] { rollout(layers.view(), small.view()); }),
            "rollout: out has shape {1, 2}, expected {2, 2} for layers of shape {1, 2, 2}");
  EXPECT_EQ(message_of<DtypeError>([&] { rollout(half.view(), out.view()); }),
            "rollout: layers has type float16, expected float32 or float64; convert it");
}

}  // namespace
}  // namespace qkv
