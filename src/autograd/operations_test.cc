// Every operation against central differences, from one list.
#include "qkv/operations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "core/elements.h"
#include "qkv/dropout.h"

namespace qkv::nn {
namespace {

using Shape = std::vector<int64_t>;

/// Numbers between -1 and 1 that depend on the seed and their place.
Array random(Shape shape, uint64_t seed) {
  Array a(DType::kFloat64, std::move(shape));
  auto* to = static_cast<double*>(a.data());
  for (int64_t n = 0; n < a.size(); ++n) to[n] = std::ldexp(double(philox({uint32_t(n), 0, 0, 0}, seed)[0]), -31) - 1;
  return a;
}

/// What an operation is tried on.
struct Given {
  std::vector<Variable> x;
  std::deque<Parameter>& p;
};
using Run = std::function<Variable(Tape&, const Given&)>;

struct Operation {
  std::string name;
  std::vector<Shape> variables;
  Run run;
  std::vector<Shape> parameters{};
  bool narrow = true;  ///< its tensors may have 16 bits
};

Layout layout(const Shape& sizes, const Shape& steps) { return Layout(sizes, steps); }

void add_attentions(std::vector<Operation>& all) {
  using More = std::function<void(AttentionVariables&, const Given&)>;
  const auto attention = [&](const char* name, const char* text, std::vector<Shape> shapes = {},
                             const More& more = {}) {
    shapes.insert(shapes.begin(), {{2, 4, 3, 5}, {2, 2, 6, 5}, {2, 2, 6, 7}});
    all.push_back({std::string("attend_") + name,
                   shapes,
                   [=](Tape& t, const Given& g) {
                     AttentionVariables in{.query = g.x[0], .key = g.x[1], .value = g.x[2]};
                     if (more) more(in, g);
                     return attend(t, Attention::parse(text), in);
                   },
                   {},
                   shapes.size() == 3});
  };
  attention("plain", "softmax");
  attention("causal", "causal align:bottom_right");
  attention("bias", "bias", {{1, 4, 3, 6}}, [](auto& in, const Given& g) { in.bias = g.x[3]; });
  attention("bias_of_keys", "bias", {{2, 1, 1, 6}}, [](auto& in, const Given& g) { in.bias = g.x[3]; });
  attention("alibi", "align:bottom_right | alibi", {{4}}, [](auto& in, const Given& g) { in.alibi_slopes = g.x[3]; });
  attention("sinks", "sink_softmax", {{4}}, [](auto& in, const Given& g) { in.sinks = g.x[3]; });
  attention("scales", "scales", {{4}}, [](auto& in, const Given& g) { in.named.emplace_back("scales", g.x[3]); });
  attention("dropout", "dropout:0.3");
  // One tensor holds queries, keys and values side by side, as a packed projection makes them.
  all.push_back(
      {"attend_packed", {{2, 5, 3 * 2 * 4}}, [](Tape& t, const Given& g) {
         const Layout heads = layout({2, 2, 5, 4}, {5 * 24, 4, 24, 1});
         return attend(
             t, Attention::parse("causal"),
             {.query = g.x[0].seen_as(heads), .key = g.x[0].seen_as(heads, 8), .value = g.x[0].seen_as(heads, 16)});
       }});
  // A tensor that is attended to by two calls, and is query and key at once.
  all.push_back({"attend_twice", {{1, 2, 5, 4}}, [](Tape& t, const Given& g) {
                   const Variable& x = g.x[0];
                   const Variable y = attend(t, Attention{}, {.query = x, .key = x, .value = x});
                   const Variable z = y.seen_as(layout({1, 2, 5, 4}, {40, 4, 8, 1}));
                   return attend(t, Attention::parse("causal"), {.query = z, .key = x, .value = z});
                 }});
}

void add_rotations(std::vector<Operation>& all) {
  all.push_back({"rotate", {{2, 3, 5, 8}}, [](Tape& t, const Given& g) {
                   return rotate(t, Rotary({.dim = 6, .base = 100}), g.x[0], {.offset = 3});
                 }});
  // Queries and keys of a packed projection are turned, and meet in its gradient.
  all.push_back({"rotate_packed", {{2, 5, 2 * 2 * 4}}, [](Tape& t, const Given& g) {
                   const Layout heads = layout({2, 2, 5, 4}, {80, 4, 16, 1});
                   const Rotary rotary({.dim = 4, .base = 100});
                   const Variable q = g.x[0].seen_as(heads), k = g.x[0].seen_as(heads, 8);
                   return attend(t, Attention::parse("causal"),
                                 {.query = rotate(t, rotary, q, {}), .key = rotate(t, rotary, k, {}), .value = k});
                 }});
}

void add_rows(std::vector<Operation>& all) {
  for (const Activation f : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    const std::string number = std::to_string(int(f));
    all.push_back({"activate_" + number, {{3, 5, 7}}, [f](Tape& t, const Given& g) { return activate(t, f, g.x[0]); }});
    all.push_back(
        {"activate_gated_" + number, {{3, 10}}, [f](Tape& t, const Given& g) { return activate_gated(t, f, g.x[0]); }});
    all.push_back({"activate_twice_" + number, {{2, 4}}, [f](Tape& t, const Given& g) {
                     return add(t, activate(t, f, g.x[0]), activate(t, f, activate(t, f, g.x[0])));
                   }});
  }
  all.push_back({"layer_norm_bare", {{3, 2, 9}}, [](Tape& t, const Given& g) {
                   return layer_norm(t, g.x[0], nullptr, nullptr, 1e-3);
                 }});
  all.push_back({"layer_norm",
                 {{3, 2, 9}},
                 [](Tape& t, const Given& g) { return layer_norm(t, g.x[0], &g.p[0], &g.p[1], 1e-3); },
                 {{9}, {9}}});
  all.push_back(
      {"rms_norm", {{5, 9}}, [](Tape& t, const Given& g) { return rms_norm(t, g.x[0], &g.p[0], 1e-3); }, {{9}}});
  all.push_back({"norms_that_share_a_gain",
                 {{5, 9}},
                 [](Tape& t, const Given& g) {
                   const Variable y = layer_norm(t, g.x[0], &g.p[0], &g.p[1], 1e-3);
                   return layer_norm(t, y, &g.p[0], &g.p[2], 1e-3);
                 },
                 {{9}, {9}, {9}}});
  all.push_back({"norm_twice",
                 {{5, 9}},
                 [](Tape& t, const Given& g) { return rms_norm(t, rms_norm(t, g.x[0], &g.p[0], 1e-3), &g.p[0], 1e-3); },
                 {{9}}});
}

void add_dense(std::vector<Operation>& all) {
  all.push_back({"add", {{3, 4}, {3, 4}}, [](Tape& t, const Given& g) { return add(t, g.x[0], g.x[1]); }});
  all.push_back({"add_itself", {{3, 4}}, [](Tape& t, const Given& g) { return add(t, g.x[0], g.x[0]); }});
  all.push_back({"linear",
                 {{2, 3, 5}},
                 [](Tape& t, const Given& g) { return linear(t, g.x[0], g.p[0], g.p[1]); },
                 {{7, 5}, {7}}});
  all.push_back(
      {"linear_without_bias", {{4, 5}}, [](Tape& t, const Given& g) { return linear(t, g.x[0], g.p[0]); }, {{3, 5}}});
  // Some rows of a packed projection, and all of them, in one step; a weight that is used twice.
  all.push_back({"linear_of_rows",
                 {{4, 5}},
                 [](Tape& t, const Given& g) {
                   const Variable y = linear(t, g.x[0], Rows(g.p[0], 2, 5), Rows(g.p[1], 2, 5));
                   return linear(t, y, g.p[0], g.p[1]);
                 },
                 {{9, 5}, {9}}});
  all.push_back({"residual",
                 {{4, 5}},
                 [](Tape& t, const Given& g) {
                   const Variable h = activate(t, Activation::kGelu, linear(t, g.x[0], g.p[0], g.p[1]));
                   return add(t, g.x[0], linear(t, h, g.p[2]));
                 },
                 {{8, 5}, {8}, {5, 8}}});
}

const int32_t kIds[] = {3, 0, 3, 1, 1, 3};
const View<const int32_t> kTargets(kIds, {2, 3});

void add_tables(std::vector<Operation>& all) {
  all.push_back({"embed", {}, [](Tape& t, const Given& g) { return embed(t, kTargets, g.p[0]); }, {{4, 5}}});
  all.push_back({"embed_twice",
                 {},
                 [](Tape& t, const Given& g) {
                   return add(t, embed(t, kTargets, g.p[0]), linear(t, embed(t, kTargets, g.p[0]), g.p[0]));
                 },
                 {{5, 5}}});
  all.push_back({"add_rows",
                 {{3, 2, 5}},
                 [](Tape& t, const Given& g) { return add_rows(t, add_rows(t, g.x[0], Rows(g.p[0], 1, 3)), g.p[0]); },
                 {{4, 5}}});
  all.push_back({"add_rows_of_numbers",
                 {{3, 2, 5}},
                 [](Tape& t, const Given& g) {
                   static const Array table = random({4, 5}, 78);
                   return add_rows(t, g.x[0], table.view());
                 },
                 {},
                 false});
  all.push_back({"t5_bias",
                 {{1, 2, 4, 3}},
                 [](Tape& t, const Given& g) {
                   const T5Pairs pairs{.queries = 4, .keys = 4, .query_offset = 2, .key_start = 1};
                   const Variable bias = t5_bias(t, {.buckets = 8, .max_distance = 6}, pairs, g.p[0]);
                   const Variable& x = g.x[0];
                   return attend(t, Attention::parse("bias"), {.query = x, .key = x, .value = x, .bias = bias});
                 },
                 {{8, 2}}});
  all.push_back(
      {"dropout", {{4, 9}}, [](Tape& t, const Given& g) { return dropout(t, dropout(t, g.x[0], 0.4), 0.2); }});
}

void add_losses(std::vector<Operation>& all) {
  for (const double smoothing : {0.0, 0.3}) {
    const TargetOptions options{.label_smoothing = smoothing, .ignored = 1};
    const std::string end = smoothing > 0 ? "_smoothed" : "";
    all.push_back({"cross_entropy" + end, {{2, 3, 4}}, [options](Tape& t, const Given& g) {
                     return cross_entropy(t, g.x[0], kTargets, options);
                   }});
    all.push_back({"linear_cross_entropy" + end,
                   {{2, 3, 5}},
                   [options](Tape& t, const Given& g) {
                     return linear_cross_entropy(t, g.x[0], g.p[0], g.p[1], kTargets, options);
                   },
                   {{4, 5}, {4}}});
  }
  static const Array wanted = random({6, 4}, 77);
  all.push_back({"mean_squared_error",
                 {{2, 3, 4}},
                 [](Tape& t, const Given& g) { return mean_squared_error(t, g.x[0], wanted.view()); },
                 {},
                 false});
  all.push_back({"mean_absolute_error",
                 {{2, 3, 4}},
                 [](Tape& t, const Given& g) { return mean_absolute_error(t, g.x[0], wanted.view()); },
                 {},
                 false});
}

std::vector<Operation> operations() {
  std::vector<Operation> all;
  add_tables(all);
  add_losses(all);
  add_attentions(all);
  add_rotations(all);
  add_rows(all);
  add_dense(all);
  return all;
}

std::vector<std::string> names_of(const std::vector<Operation>& all) {
  std::vector<std::string> names;
  for (const Operation& o : all) names.push_back(o.name);
  return names;
}

std::span<double> numbers(Array& a) { return {static_cast<double*>(a.data()), size_t(a.size())}; }
std::vector<double> numbers(const View<const void>& v) {
  const auto* first = static_cast<const double*>(v.data);
  return v ? std::vector<double>(first, first + v.size()) : std::vector<double>{};
}

/// The same numbers in another type.
Array converted(const Array& from, DType type) {
  Array to(type, from.shape());
  const auto* x = static_cast<const double*>(from.data());
  with_floating(type, [&]<class E>(E*) {
    for (int64_t n = 0; n < from.size(); ++n) static_cast<E*>(to.data())[n] = rounded<E>(x[n]);
  });
  return to;
}

/// Gradients in a type, in double: of 16-bit tensors with float32 parameters, as mixed precision has them.
std::vector<std::vector<double>> gradients_in(const Operation& o, DType storage) {
  const DType of_parameters = storage == DType::kFloat64 ? storage : DType::kFloat32;
  std::vector<Array> arrays;
  std::deque<Parameter> parameters;
  Tape tape({.seed = 5, .storage = storage});
  Given g{{}, parameters};
  for (const Shape& shape : o.variables) arrays.push_back(converted(random(shape, arrays.size()), storage));
  for (const Array& a : arrays) g.x.push_back(tape.leaf(a.view()));
  for (const Shape& shape : o.parameters)
    parameters.emplace_back().value = converted(random(shape, 50 + parameters.size()), of_parameters);
  const Variable y = o.run(tape, g);
  const Layout& made = y.layout();
  const Array factors = random({made.shape.begin(), made.shape.begin() + made.rank}, 99);
  tape.backward(y, converted(factors, y.dtype()).view());
  std::vector<std::vector<double>> all;
  const auto take = [&](const View<const void>& gradient) {
    all.emplace_back(size_t(gradient.size()));
    load(gradient, 0, 1, gradient.size(), all.back().data());
  };
  for (const Variable& x : g.x) take(x.gradient());
  for (const Parameter& p : parameters) take(p.gradient.view());
  return all;
}

/// An operation with its tensors.
class Trial {
 public:
  explicit Trial(const Operation& operation) : operation_(operation) {
    for (const Shape& shape : operation.variables) variables_.push_back(random(shape, variables_.size()));
    for (const Shape& shape : operation.parameters)
      parameters_.emplace_back(DType::kFloat64, shape).value = random(shape, 50 + parameters_.size());
  }

  /// All tensors that have a gradient: variables, then parameters.
  size_t tensors() const { return variables_.size() + parameters_.size(); }
  std::span<double> tensor(size_t n) {
    return numbers(n < variables_.size() ? variables_[n] : parameters_[n - variables_.size()].value);
  }
  void changed() {
    for (Parameter& p : parameters_) p.changed();
  }

  /// The sum of all elements of the result, each times a random number.
  double loss() {
    Tape tape(kOptions);
    const Variable y = run(tape, given(tape));
    const std::vector<double> made = numbers(y.value()), factors = numbers(factors_of(y).view());
    double sum = 0;
    for (size_t n = 0; n < made.size(); ++n) sum += made[n] * factors[n];
    return sum;
  }

  std::vector<std::vector<double>> gradients(bool in_a_checkpoint) {
    for (Parameter& p : parameters_) p.forget_gradient();
    Tape tape(kOptions);
    const Given g = given(tape);
    const Variable y = in_a_checkpoint ? tape.checkpoint(g.x,
                                                         [&](Tape& t, std::span<const Variable> x) {
                                                           return run(t, Given{{x.begin(), x.end()}, parameters_});
                                                         })
                                       : run(tape, g);
    tape.backward(y, factors_of(y).view());
    std::vector<std::vector<double>> all;
    for (const Variable& x : g.x) all.push_back(numbers(x.gradient()));
    for (Parameter& p : parameters_) all.push_back(numbers(p.is_reached ? p.gradient.view() : View<const void>{}));
    return all;
  }

 private:
  static constexpr uint64_t kSeed = 5;
  const TapeOptions kOptions{.seed = kSeed, .storage = DType::kFloat64};
  Given given(Tape& tape) {
    Given g{{}, parameters_};
    for (const Array& a : variables_) g.x.push_back(tape.leaf(a.view()));
    return g;
  }
  Variable run(Tape& tape, const Given& g) { return operation_.run(tape, g); }
  static Array factors_of(const Variable& y) {
    const Layout& made = y.layout();
    return random({made.shape.begin(), made.shape.begin() + made.rank}, 99);
  }
  const Operation& operation_;
  std::vector<Array> variables_;
  std::deque<Parameter> parameters_;
};

class Operations : public testing::TestWithParam<std::string> {
 protected:
  const Operation& operation() {
    static const auto all = operations();
    for (const Operation& o : all)
      if (o.name == GetParam()) return o;
    std::abort();
  }
};

TEST_P(Operations, HaveTheGradientsThatCentralDifferencesHave) {
  Trial trial(operation());
  const auto gradients = trial.gradients(false);
  for (size_t i = 0; i < trial.tensors(); ++i) {
    ASSERT_EQ(gradients[i].size(), trial.tensor(i).size()) << "tensor " << i << " has no gradient";
    for (size_t n = 0; n < gradients[i].size(); ++n) {
      double& number = trial.tensor(i)[n];
      const double kept = number, step = 1e-5;
      const auto loss_at = [&](double moved) {
        number = moved;
        trial.changed();
        return trial.loss();
      };
      const double difference = (loss_at(kept + step) - loss_at(kept - step)) / (2 * step);
      number = kept;
      trial.changed();
      ASSERT_NEAR(gradients[i][n], difference, 1e-8 * (1 + std::abs(difference)))
          << "tensor " << i << ", element " << n;
    }
  }
}

TEST_P(Operations, HaveTheSameGradientsInACheckpoint) {
  Trial trial(operation());
  EXPECT_EQ(trial.gradients(true), trial.gradients(false));
}

TEST_P(Operations, HaveTheirGradientsInEveryTypeUpToItsRoundings) {
  const Operation& o = operation();
  if (!o.narrow) GTEST_SKIP() << "its tensors have float32 or float64";
  const auto exact = gradients_in(o, DType::kFloat64);
  const std::pair<DType, double> types[] = {{DType::kFloat32, 1e-5}, {DType::kFloat16, 1e-2}, {DType::kBFloat16, 6e-2}};
  for (const auto& [type, tolerance] : types) {
    const auto found = gradients_in(o, type);
    for (size_t i = 0; i < exact.size(); ++i) {
      double error = 0, norm = 0;
      for (size_t n = 0; n < exact[i].size(); ++n) {
        error += std::pow(found[i][n] - exact[i][n], 2);
        norm += std::pow(exact[i][n], 2);
      }
      EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(norm)) << name(type) << ", tensor " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Operations, testing::ValuesIn(names_of(operations())),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace qkv::nn
