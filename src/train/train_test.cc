#include "qkv/train.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "qkv/dropout.h"
#include "qkv/error.h"
#include "qkv/io.h"
#include "qkv/models.h"

namespace qkv::nn {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kBatch = 4, kLength = 12, kTokens = 7;

/// Each next token is the last one plus a step that the first two tell.
class Counting : public Task {
 public:
  explicit Counting(LanguageModel::Options o = {}) : model_(completed(o)) { model_.initialise(3); }

  Variable loss(Tape& tape, uint64_t seed, uint64_t batch) override {
    if (batch == broken_batch)
      model_.visit("", [](const std::string&, Parameter& p) {
        static_cast<float*>(p.value.data())[0] = NAN;
        p.changed();
      });
    draw(seed, batch);
    return model_.loss(tape, {ids_.data(), {kBatch, kLength}}, {targets_.data(), {kBatch, kLength}});
  }
  Metrics evaluate(Tape& tape) override {
    draw(99, 0);
    return {{"loss", *model_.loss(tape, {ids_.data(), {kBatch, kLength}}, {targets_.data(), {kBatch, kLength}})
                          .value()
                          .as<const double>()
                          .data}};
  }
  void visit(const Visitor& f) override { model_.visit("", f); }
  std::string configuration() const override { return "counting " + std::to_string(model_.options().width); }
  int64_t batch_tokens() const override { return kBatch * kLength; }
  uint64_t broken_batch = ~uint64_t{0};

 private:
  static LanguageModel::Options completed(LanguageModel::Options o) {
    o.vocabulary = kTokens, o.context = kLength, o.width = o.width == 128 ? 16 : o.width, o.layers = 2, o.heads = 2;
    return o;
  }
  void draw(uint64_t seed, uint64_t batch) {
    for (int64_t b = 0; b < kBatch; ++b) {
      const auto random = philox({uint32_t(batch), uint32_t(b), 0, 0}, seed);
      for (int64_t l = 0; l < kLength; ++l) {
        const auto token = [&](int64_t at) {
          return int32_t((random[0] + uint64_t(at) * (1 + random[1] % 3)) % kTokens);
        };
        ids_[size_t(b * kLength + l)] = token(l), targets_[size_t(b * kLength + l)] = token(l + 1);
      }
    }
  }
  LanguageModel model_;
  std::vector<int32_t> ids_ = std::vector<int32_t>(kBatch * kLength), targets_ = ids_;
};

std::vector<float> numbers_of(Task& task) {
  std::vector<float> all;
  task.visit([&](const std::string&, Parameter& p) {
    const auto* first = static_cast<const float*>(p.value.data());
    all.insert(all.end(), first, first + p.value.size());
  });
  return all;
}

struct TrainTest : testing::Test {
  std::string folder = testing::TempDir() + "qkv_train_" + std::to_string(::getpid()) + "_" +
                       testing::UnitTest::GetInstance()->current_test_info()->name();
  TrainTest() { std::filesystem::remove_all(folder); }
  ~TrainTest() override { std::filesystem::remove_all(folder); }
  TrainOptions options(int64_t steps) const {
    return {.steps = steps,
            .schedule = {.kind = ScheduleKind::kCosine, .peak = 0.01, .warmup = 3, .steps = 20},
            .evaluate_every = 4,
            .save_every = 1,
            .folder = folder};
  }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder + "/" + name).rdbuf();
    return text.str();
  }
  /// What the error of a training says.
  static std::string failure(Task& task, const TrainOptions& o) {
    try {
      train(task, o);
      return "none";
    } catch (const Error& e) {
      return e.what();
    }
  }
};

TEST_F(TrainTest, Learns) {
  Counting task;
  double first = 0, last = 0;
  TrainOptions o = options(150);
  o.folder.clear(), o.schedule = {.peak = 0.01};
  const Trained t = train(task, o, [&](const Progress& p) { (p.step == 1 ? first : last) = p.loss; });
  EXPECT_NEAR(first, std::log(double(kTokens)), 0.1);
  EXPECT_LT(last, 0.9);
  EXPECT_TRUE(t.is_complete);
  EXPECT_LT(t.best.at("loss"), 0.9);
}

TEST_F(TrainTest, GoesOnWithTheBitsOfATrainingThatDidNotStop) {
  for (const DType storage : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Counting whole({.dropout = 0.1}), first({.dropout = 0.1}), second({.dropout = 0.1});
    TrainOptions o = options(9);
    o.storage = storage, o.folder.clear();
    std::vector<double> losses, again;
    train(whole, o, [&](const Progress& p) { losses.push_back(p.loss); });
    o.folder = folder;
    std::stop_source stop;
    o.call.stop = stop.get_token();
    const Trained stopped = train(first, o, [&](const Progress& p) {
      again.push_back(p.loss);
      if (p.step == 5) stop.request_stop();
    });
    EXPECT_EQ(stopped.step, 5);
    EXPECT_FALSE(stopped.is_complete);
    o.call.stop = {};
    const Trained rest = train(second, o, [&](const Progress& p) { again.push_back(p.loss); });
    EXPECT_TRUE(rest.is_complete);
    EXPECT_EQ(losses, again) << name(storage);
    EXPECT_EQ(numbers_of(whole), numbers_of(second)) << name(storage);
    std::filesystem::remove_all(folder);
  }
}

TEST_F(TrainTest, GoesOnFromTheLastCheckpointWhenItWasKilled) {
  Counting whole, killed, again;
  TrainOptions o = options(8);
  o.save_every = 3;
  struct Killed {};
  EXPECT_THROW(train(killed, o,
                     [](const Progress& p) {
                       if (p.step == 5) throw Killed{};
                     }),
               Killed);
  std::vector<int64_t> steps;
  train(again, o, [&](const Progress& p) { steps.push_back(p.step); });
  EXPECT_THAT(steps, testing::ElementsAre(4, 5, 6, 7, 8));
  o.folder.clear();
  train(whole, o);
  EXPECT_EQ(numbers_of(whole), numbers_of(again));
  const std::string metrics = read("metrics.jsonl");
  EXPECT_EQ(std::ranges::count(metrics, '\n'), 8) << "each step once:\n" << metrics;
}

TEST_F(TrainTest, ACompleteTrainingIsNotTrainedAgain) {
  Counting task, again;
  train(task, options(4));
  int steps = 0;
  const Trained t = train(again, options(4), [&](const Progress&) { ++steps; });
  EXPECT_EQ(steps, 0);
  EXPECT_TRUE(t.is_complete);
  EXPECT_EQ(numbers_of(task), numbers_of(again));
  EXPECT_TRUE(t.best.contains("loss"));
}

TEST_F(TrainTest, TheBestModelIsKept) {
  Counting task, best;
  const Trained t = train(task, options(20));
  load_parameters(best, folder + "/best.safetensors");
  Tape tape({.training = false});
  EXPECT_DOUBLE_EQ(best.evaluate(tape).at("loss"), t.best.at("loss"));
  EXPECT_EQ(read_configuration(folder + "/best.safetensors"), "counting 16");
}

TEST_F(TrainTest, RefusesCheckpointsOfOtherModelsAndTrainings) {
  Counting task, other({.width = 8});
  train(task, options(2));
  EXPECT_THAT(failure(other, options(4)),
              HasSubstr("is of another model; it has counting 16, and this one is counting 8"));
  TrainOptions o = options(4);
  o.seed = 2;
  EXPECT_THAT(failure(task, o), HasSubstr("is of a training with"));
  EXPECT_THAT(failure(task, options(4)), "none");
}

TEST_F(TrainTest, RefusesDamagedCheckpoints) {
  Counting task;
  train(task, options(2));
  const std::string path = folder + "/last.safetensors", whole = read("last.safetensors");
  for (const size_t length : {size_t{0}, size_t{4}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, length);
    EXPECT_THROW(train(task, options(4)), FileError) << length;
  }
}

TEST_F(TrainTest, ALossThatIsNoNumberEndsTrainingAndKeepsTheLastCheckpoint) {
  Counting task, good, again;
  task.broken_batch = 3;
  EXPECT_THAT(failure(task, options(8)),
              testing::AllOf(HasSubstr("the loss of step 4 is nan, at a learning rate of 0.01"),
                             HasSubstr("last.safetensors is of an earlier step")));
  TrainOptions o = options(3);
  train(again, o);
  o.folder.clear();
  train(good, o);
  EXPECT_EQ(numbers_of(good), numbers_of(again));
}

TEST_F(TrainTest, AFolderThatCannotBeWrittenIsAnError) {
  Counting task;
  TrainOptions o = options(2);
  o.folder = "/proc/nowhere";
  EXPECT_THROW(train(task, o), FileError);
}

TEST_F(TrainTest, NamesParametersThatNoGradientReaches) {
  class Partly : public Counting {
   public:
    void visit(const Visitor& f) override { Counting::visit(f), f("unused", unused_); }
    Parameter unused_{DType::kFloat32, {3}};
  } task;
  TrainOptions o = options(2);
  std::vector<std::string> unreached;
  train(task, o, [&](const Progress& p) {
    if (p.step == 1) unreached = p.unreached;
  });
  EXPECT_THAT(unreached, testing::ElementsAre("unused"));
  Counting whole;
  o.folder.clear();
  train(whole, o, [&](const Progress& p) { EXPECT_THAT(p.unreached, IsEmpty()); });
}

TEST_F(TrainTest, BatchesOfAStepAddUp) {
  Counting one, two;
  TrainOptions o = options(1);
  o.folder.clear(), o.schedule = {.peak = 0.5}, o.clip_norm = 0, o.optimiser = {.kind = OptimiserKind::kSgd};
  o.batches = 2;
  train(two, o);
  Tape tape;
  std::vector<float> expected = numbers_of(one);
  for (const uint64_t batch : {0, 1}) tape.backward(one.loss(tape, 1, batch), 0.5);
  size_t n = 0;
  one.visit([&](const std::string&, Parameter& p) {
    for (int64_t i = 0; i < p.value.size(); ++i)
      expected[n++] -= 0.5F * static_cast<const float*>(p.gradient.data())[i];
  });
  EXPECT_THAT(numbers_of(two), testing::Pointwise(testing::FloatNear(1e-7F), expected));
}

TEST_F(TrainTest, SixteenBitsLearnAsFloat32Does) {
  double loss[3];
  size_t n = 0;
  for (const DType storage : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Counting task;
    TrainOptions o = options(150);
    o.storage = storage, o.folder.clear(), o.schedule = {.peak = 0.01};
    loss[n++] = train(task, o).last.at("loss");
  }
  EXPECT_LT(loss[1], loss[0] + 0.15);
  EXPECT_LT(loss[2], loss[0] + 0.15);
}

TEST_F(TrainTest, RefusesOptionsThatCannotBeMeant) {
  Counting task;
  EXPECT_THAT(failure(task, {.steps = 0}), HasSubstr("train: steps is 0, expected 1 or more"));
  EXPECT_THAT(failure(task, {.clip_norm = -1}), HasSubstr("clip_norm is -1"));
  EXPECT_THAT(failure(task, {.storage = DType::kInt8}), HasSubstr("storage is int8"));
}

}  // namespace
}  // namespace qkv::nn
