// Every operation against central differences, from one list.
#include "qkv/operations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "qkv/dropout.h"

namespace qkv::nn {
namespace {

/// Numbers between -1 and 1 that depend on the seed and their place.
Array random(std::vector<int64_t> shape, uint64_t seed) {
  Array a(DType::kFloat64, std::move(shape));
  auto* to = static_cast<double*>(a.data());
  for (int64_t n = 0; n < a.size(); ++n) to[n] = std::ldexp(double(philox({uint32_t(n), 0, 0, 0}, seed)[0]), -31) - 1;
  return a;
}

struct Operation {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;  ///< of what has a gradient
  std::function<Variable(Tape&, const std::vector<Variable>&)> run;
};

const std::vector<int64_t> kQuery{2, 4, 3, 5}, kKey{2, 2, 6, 5}, kValue{2, 2, 6, 7};

Variable run_attention(Tape& tape, const char* text, const std::vector<Variable>& x,
                       const std::function<void(AttentionVariables&)>& more = {}) {
  AttentionVariables in{.query = x[0], .key = x[1], .value = x[2]};
  if (more) more(in);
  return attend(tape, Attention::parse(text), in);
}

/// The rows of two matrices {L, D} attend to each other.
Variable attend_to_itself(Tape& tape, const Variable& x, const Variable& y) {
  const int64_t sizes[] = {1, 1, x.shape(0), x.shape(1)};
  const Variable a = x.seen_as(Layout(sizes)), b = y.seen_as(Layout(sizes));
  return attend(tape, Attention{}, {.query = a, .key = b, .value = a});
}

std::vector<Operation> operations() {
  std::vector<Operation> all;
  const auto attention = [&](std::string name, const char* text, std::vector<std::vector<int64_t>> shapes = {},
                             std::function<void(AttentionVariables&, const std::vector<Variable>&)> more = {}) {
    shapes.insert(shapes.begin(), {kQuery, kKey, kValue});
    all.push_back({"attend_" + std::move(name), std::move(shapes), [=](Tape& tape, const std::vector<Variable>& x) {
                     return run_attention(tape, text, x, [&](AttentionVariables& in) {
                       if (more) more(in, x);
                     });
                   }});
  };
  attention("plain", "softmax");
  attention("causal", "causal align:bottom_right");
  attention("bias", "bias", {{1, 4, 3, 6}}, [](auto& in, const auto& x) { in.bias = x[3]; });
  attention("bias_of_keys", "bias", {{2, 1, 1, 6}}, [](auto& in, const auto& x) { in.bias = x[3]; });
  attention("alibi", "align:bottom_right | alibi", {{4}}, [](auto& in, const auto& x) { in.alibi_slopes = x[3]; });
  attention("sinks", "sink_softmax", {{4}}, [](auto& in, const auto& x) { in.sinks = x[3]; });
  attention("scales", "scales", {{4}}, [](auto& in, const auto& x) { in.named.emplace_back("scales", x[3]); });
  attention("dropout", "dropout:0.3");
  // One tensor holds queries, keys and values side by side, as a packed projection makes them.
  all.push_back({"attend_packed", {{2, 5, 3 * 2 * 4}}, [](Tape& tape, const std::vector<Variable>& x) {
                   AttentionVariables in;
                   const int64_t sizes[] = {2, 2, 5, 4}, steps[] = {5 * 24, 4, 24, 1};
                   Variable* to[] = {&in.query, &in.key, &in.value};
                   for (int n = 0; n < 3; ++n) *to[n] = x[0].seen_as(Layout(sizes, steps), n * 8);
                   return attend(tape, Attention::parse("causal"), in);
                 }});
  // A tensor that is attended to by two calls, and is query and key at once.
  all.push_back({"attend_twice", {{1, 2, 5, 4}}, [](Tape& tape, const std::vector<Variable>& x) {
                   const Variable y =
                       attend(tape, Attention::parse("softmax"), {.query = x[0], .key = x[0], .value = x[0]});
                   const int64_t sizes[] = {1, 2, 5, 4}, steps[] = {40, 4, 8, 1};
                   const Variable z = y.seen_as(Layout(sizes, steps));
                   return attend(tape, Attention::parse("causal"), {.query = z, .key = x[0], .value = z});
                 }});
  const auto one = [&](std::string name, std::vector<int64_t> shape, auto run) {
    all.push_back(
        {std::move(name), {std::move(shape)}, [run](Tape& t, const std::vector<Variable>& x) { return run(t, x[0]); }});
  };
  for (const Activation f : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    const std::string number = std::to_string(int(f));
    one("activate_" + number, {3, 5, 7}, [f](Tape& t, const Variable& x) { return activate(t, f, x); });
    one("activate_gated_" + number, {3, 10}, [f](Tape& t, const Variable& x) { return activate_gated(t, f, x); });
    one("activate_twice_" + number, {2, 4}, [f](Tape& t, const Variable& x) {
      return layer_norm(t, attend_to_itself(t, activate(t, f, x), activate(t, f, x)), nullptr, nullptr);
    });
  }
  one("layer_norm", {3, 2, 9}, [](Tape& t, const Variable& x) { return layer_norm(t, x, nullptr, nullptr, 1e-3); });
  one("rms_norm", {5, 9}, [](Tape& t, const Variable& x) { return rms_norm(t, x, nullptr, 1e-3); });
  one("rotate", {2, 3, 5, 8},
      [](Tape& t, const Variable& x) { return rotate(t, Rotary({.dim = 6, .base = 100}), x, {.offset = 3}); });
  // The queries of a packed projection are turned, the keys too, and meet in its gradient.
  one("rotate_packed", {2, 5, 2 * 2 * 4}, [](Tape& t, const Variable& x) {
    const int64_t sizes[] = {2, 2, 5, 4}, steps[] = {80, 4, 16, 1};
    const Rotary rotary({.dim = 4, .base = 100});
    const Variable q = x.seen_as(Layout(sizes, steps)), k = x.seen_as(Layout(sizes, steps), 8);
    return attend(t, Attention::parse("causal"),
                  {.query = rotate(t, rotary, q, {}), .key = rotate(t, rotary, k, {}), .value = k});
  });
  return all;
}

std::vector<std::string> names_of(const std::vector<Operation>& all) {
  std::vector<std::string> names;
  for (const Operation& o : all) names.push_back(o.name);
  return names;
}

class Operations : public testing::TestWithParam<std::string> {
 protected:
  const Operation& operation() {
    static const auto all = operations();
    for (const Operation& o : all)
      if (o.name == GetParam()) return o;
    std::abort();
  }
};

double loss(const Operation& o, const std::vector<Array>& inputs, const Array& factors) {
  Tape tape({.seed = 5, .storage = DType::kFloat64});
  std::vector<Variable> x;
  for (const Array& a : inputs) x.push_back(tape.leaf(a.view()));
  const Variable y = o.run(tape, x);
  double sum = 0;
  const auto* made = static_cast<const double*>(y.value().data);
  for (int64_t n = 0; n < y.layout().size(); ++n) sum += made[n] * static_cast<const double*>(factors.data())[n];
  return sum;
}

TEST_P(Operations, HaveTheGradientsThatCentralDifferencesHave) {
  const Operation& o = operation();
  std::vector<Array> inputs;
  for (const auto& shape : o.shapes) inputs.push_back(random(shape, inputs.size()));
  Tape tape({.seed = 5, .storage = DType::kFloat64});
  std::vector<Variable> x;
  for (const Array& a : inputs) x.push_back(tape.leaf(a.view()));
  const Variable y = o.run(tape, x);
  const Layout& made = y.layout();
  const Array factors = random({made.shape.begin(), made.shape.begin() + made.rank}, 99);
  tape.backward(y, factors.view());

  for (size_t i = 0; i < inputs.size(); ++i) {
    auto* numbers = static_cast<double*>(inputs[i].data());
    const auto* gradient = static_cast<const double*>(x[i].gradient().data);
    for (int64_t n = 0; n < inputs[i].size(); ++n) {
      const double kept = numbers[n], step = 1e-5;
      numbers[n] = kept + step;
      const double above = loss(o, inputs, factors);
      numbers[n] = kept - step;
      const double below = loss(o, inputs, factors);
      numbers[n] = kept;
      const double difference = (above - below) / (2 * step);
      ASSERT_NEAR(gradient[n], difference, 1e-8 * (1 + std::abs(difference))) << "input " << i << ", element " << n;
    }
  }
}

TEST_P(Operations, HaveTheSameGradientsInACheckpoint) {
  const Operation& o = operation();
  std::vector<Array> inputs;
  for (const auto& shape : o.shapes) inputs.push_back(random(shape, inputs.size()));
  std::vector<std::vector<double>> found[2];
  for (const bool is_checkpointed : {false, true}) {
    Tape tape({.seed = 5, .storage = DType::kFloat64});
    std::vector<Variable> x;
    for (const Array& a : inputs) x.push_back(tape.leaf(a.view()));
    const auto run = [&](Tape& t, std::span<const Variable> in) { return o.run(t, {in.begin(), in.end()}); };
    const Variable y = is_checkpointed ? tape.checkpoint(x, run) : run(tape, x);
    const Layout& made = y.layout();
    tape.backward(y, random({made.shape.begin(), made.shape.begin() + made.rank}, 99).view());
    for (const Variable& v : x) {
      const auto* g = static_cast<const double*>(v.gradient().data);
      found[is_checkpointed].emplace_back(g, g + v.layout().size());
    }
  }
  EXPECT_EQ(found[0], found[1]);
}

INSTANTIATE_TEST_SUITE_P(All, Operations, testing::ValuesIn(names_of(operations())),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace qkv::nn
