#include "qkv/layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stop_token>

#include "io/test_files.h"
#include "qkv/error.h"

namespace qkv::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const float kQueries[] = {0, 0}, kKeys[] = {1, 2, 3};  // all scores alike

Layer layer_of_memory(Attention attention, Progress& progress) {
  Inputs in;
  in.query = View<const float>(kQueries, {1, 1, 2, 1});
  in.key = View<const float>(kKeys, {1, 1, 3, 1});
  return {problem_of(std::move(attention), in), -1, progress};
}

TEST(Layer, IsComputedFromTensorsInMemoryWithoutValues) {
  Progress progress;
  const Layer layer = layer_of_memory(Attention().visible(Causal{}).align(Align::kBottomRight), progress);
  EXPECT_FALSE(layer.problem()->has_values);
  EXPECT_EQ(layer.offset(0), 1);
  EXPECT_THAT(layer.row(0, 0, 0), ElementsAre(0.5, 0.5, 0));
}

TEST(Layer, OfGivenWeightsLooksAtTheirMemory) {
  Progress progress;
  float weights[] = {1, 0, 0, 0.25F, 0.5F, 0.25F};
  const View<const float> view(weights, {2, 3});
  EXPECT_EQ(Layer(view, Align::kUnset, -1, progress).offset(0), 0);
  const Layer layer(view, Align::kBottomRight, -1, progress);
  EXPECT_EQ(layer.offset(0), 1);
  weights[0] = 0.5F;
  EXPECT_THAT(layer.row(0, 0, 0), ElementsAre(0.5, 0, 0));
  weights[0] = 1.5F;
  EXPECT_THAT(io::message_of<OptionError>([&] { Layer(view, Align::kUnset, -1, progress); }), HasSubstr("1.5"));
}

TEST(Layer, IsLeftWhereAStopIsRequested) {
  Progress progress;
  const Layer layer = layer_of_memory({}, progress);
  std::stop_source stop;
  progress.run_by({.stop = stop.get_token()});
  EXPECT_EQ(layer.facts(0, 1).size(), 1U);
  stop.request_stop();
  EXPECT_THROW(layer.facts(0, 1), Cancelled);
}

}  // namespace
}  // namespace qkv::cli
