#include "qkv/layers.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <map>

#include "qkv/error.h"
#include "qkv/init.h"
#include "reference/oracle.h"

namespace qkv::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Options = MultiHeadAttention::Options;

std::span<double> numbers(Array& a) { return {static_cast<double*>(a.data()), size_t(a.size())}; }
std::span<const double> numbers(const View<const void>& v) {
  return {static_cast<const double*>(v.data), size_t(v.size())};
}

Array random(std::vector<int64_t> shape, uint32_t tensor) {
  Array a(DType::kFloat64, std::move(shape));
  fill_uniform(a.view(), 1, {.seed = 3, .tensor = tensor});
  return a;
}

template <class Layer> void fill(Layer& layer) {
  uint32_t tensor = 10;
  for_parameters(layer, [&](const std::string&, Parameter& p) {
    fill_uniform(p.value.view(), 0.5, {.seed = 3, .tensor = tensor++});
    p.changed();
  });
}

std::map<std::string, std::vector<int64_t>> shapes_of(auto& layer) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for_parameters(layer, [&](const std::string& name, Parameter& p) { shapes[name] = p.value.shape(); });
  return shapes;
}

/// x W^T + b of rows, by the formula.
std::vector<double> project(std::span<const double> x, std::span<const double> w, std::span<const double> b,
                            int64_t in) {
  const auto rows = int64_t(x.size()) / in, out = int64_t(w.size()) / in;
  std::vector<double> y;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < out; ++o) {
      long double sum = b.empty() ? 0 : b[size_t(o)];
      for (int64_t i = 0; i < in; ++i) sum += (long double)(x[size_t(r * in + i)]) * w[size_t(o * in + i)];
      y.push_back(double(sum));
    }
  return y;
}

/// Multi-head attention by its formula, head by head, without a mask.
std::vector<double> by_hand(MultiHeadAttention& layer, const Array& x, const Array& key, const Array& value) {
  const Options& o = layer.options();
  const int64_t b = x.shape()[0], l = x.shape()[1], s = key.shape()[1];
  std::map<std::string, std::span<const double>> p;
  for_parameters(layer, [&](const std::string& name, Parameter& q) { p[name] = numbers(q.value.view()); });
  const auto part = [&](const char* own, int64_t first, int64_t rows, int64_t width) {
    return p.count("in_proj_weight") ? p["in_proj_weight"].subspan(size_t(first * o.width), size_t(rows * o.width))
                                     : p[own].subspan(0, size_t(rows * width));
  };
  const int64_t nq = o.heads * o.head_dim, nk = o.key_heads * o.head_dim, nv = o.key_heads * o.value_head_dim;
  int64_t first_bias = 0;
  const auto bias = [&](bool has, int64_t rows) {
    const auto all = has ? p["in_proj_bias"].subspan(size_t(first_bias), size_t(rows)) : std::span<const double>{};
    first_bias += has ? rows : 0;
    return all;
  };
  const auto q = project(numbers(x.view()), part("q_proj_weight", 0, nq, o.width), bias(o.has_query_bias, nq), o.width);
  const auto k =
      project(numbers(key.view()), part("k_proj_weight", nq, nk, o.key_width), bias(o.has_key_bias, nk), o.key_width);
  const auto v = project(numbers(value.view()), part("v_proj_weight", nq + nk, nv, o.value_width),
                         bias(o.has_value_bias, nv), o.value_width);
  std::vector<double> heads(size_t(b * l * o.heads * o.value_head_dim));
  for (int64_t e = 0; e < b; ++e)
    for (int64_t h = 0; h < o.heads; ++h)
      for (int64_t i = 0; i < l; ++i) {
        const int64_t of = h / (o.heads / o.key_heads);
        std::vector<long double> w(static_cast<size_t>(s));
        long double total = 0;
        for (int64_t j = 0; j < s; ++j) {
          long double score = 0;
          for (int64_t d = 0; d < o.head_dim; ++d)
            score += (long double)(q[size_t(((e * l + i) * o.heads + h) * o.head_dim + d)]) *
                     k[size_t(((e * s + j) * o.key_heads + of) * o.head_dim + d)];
          total += w[size_t(j)] = std::exp(score / std::sqrt((long double)(o.head_dim)));
        }
        for (int64_t d = 0; d < o.value_head_dim; ++d) {
          long double sum = 0;
          for (int64_t j = 0; j < s; ++j)
            sum += w[size_t(j)] / total * v[size_t(((e * s + j) * o.key_heads + of) * o.value_head_dim + d)];
          heads[size_t(((e * l + i) * o.heads + h) * o.value_head_dim + d)] = double(sum);
        }
      }
  return project(heads, p["out_proj.weight"], p.count("out_proj.bias") ? p["out_proj.bias"] : std::span<const double>{},
                 o.heads * o.value_head_dim);
}

struct Shape {
  const char* name;
  Options options;
};
std::vector<Shape> shapes() {
  const DType f64 = DType::kFloat64;
  return {{"packed", {.width = 12, .heads = 3, .dtype = f64}},
          {"grouped", {.width = 12, .heads = 4, .key_heads = 2, .dtype = f64}},
          {"values_of_another_size", {.width = 12, .heads = 3, .value_head_dim = 5, .dtype = f64}},
          {"heads_of_another_size", {.width = 10, .heads = 3, .head_dim = 4, .dtype = f64}},
          {"keys_of_another_width", {.width = 12, .heads = 3, .key_width = 7, .value_width = 9, .dtype = f64}},
          {"no_bias",
           {.width = 12,
            .heads = 3,
            .has_query_bias = false,
            .has_key_bias = false,
            .has_value_bias = false,
            .has_out_bias = false,
            .dtype = f64}},
          {"some_biases", {.width = 12, .heads = 3, .has_key_bias = false, .dtype = f64}}};
}

class MultiHeadAttentionTest : public testing::TestWithParam<Shape> {};

TEST_P(MultiHeadAttentionTest, IsItsFormula) {
  MultiHeadAttention layer(GetParam().options);
  fill(layer);
  const Options& o = layer.options();
  const Array x = random({2, 4, o.width}, 0), key = random({2, 6, o.key_width}, 1),
              value = random({2, 6, o.value_width}, 2);
  Tape tape({.storage = DType::kFloat64});
  const Variable y = layer(tape, tape.constant(x.view()), tape.constant(key.view()), tape.constant(value.view()));
  EXPECT_THAT(numbers(y.value()), testing::Pointwise(testing::DoubleNear(1e-13), by_hand(layer, x, key, value)));
  if (o.key_width != o.width) return;
  const Variable self = layer(tape, tape.constant(x.view()));
  EXPECT_THAT(numbers(self.value()), testing::Pointwise(testing::DoubleNear(1e-13), by_hand(layer, x, x, x)));
}

TEST_P(MultiHeadAttentionTest, EveryParameterGetsAGradient) {
  MultiHeadAttention layer(GetParam().options);
  fill(layer);
  const Options& o = layer.options();
  const Array x = random({2, 4, o.width}, 0), key = random({2, 6, o.key_width}, 1),
              value = random({2, 6, o.value_width}, 2);
  Tape tape({.storage = DType::kFloat64});
  const Variable y = layer(tape, tape.constant(x.view()), tape.constant(key.view()), tape.constant(value.view()));
  tape.backward(y, random({2, 4, o.width}, 5).view());
  for_parameters(layer, [](const std::string& name, Parameter& p) { EXPECT_TRUE(p.is_reached) << name; });
}

INSTANTIATE_TEST_SUITE_P(All, MultiHeadAttentionTest, testing::ValuesIn(shapes()),
                         [](const auto& each) { return each.param.name; });

TEST(MultiHeadAttention, HasPyTorchsNamesAndShapes) {
  MultiHeadAttention packed({.width = 12, .heads = 3});
  EXPECT_THAT(shapes_of(packed), ElementsAre(testing::Pair("in_proj_bias", ElementsAre(36)),
                                             testing::Pair("in_proj_weight", ElementsAre(36, 12)),
                                             testing::Pair("out_proj.bias", ElementsAre(12)),
                                             testing::Pair("out_proj.weight", ElementsAre(12, 12))));
  MultiHeadAttention separate({.width = 12, .heads = 3, .key_width = 5, .value_width = 7});
  EXPECT_THAT(shapes_of(separate)["k_proj_weight"], ElementsAre(12, 5));
  EXPECT_THAT(shapes_of(separate)["v_proj_weight"], ElementsAre(12, 7));
}

TEST(MultiHeadAttention, GivesTheWeightsOfEachHead) {
  MultiHeadAttention layer({.width = 8, .heads = 2, .formula = Attention::parse("causal"), .dtype = DType::kFloat64});
  fill(layer);
  const Array x = random({1, 3, 8}, 0);
  Array weights(DType::kFloat64, {1, 2, 3, 3});
  Tape tape({.storage = DType::kFloat64});
  layer(tape, tape.constant(x.view()), {.weights = weights.view()});
  const auto w = numbers(weights);
  EXPECT_EQ(w[0], 1);
  EXPECT_EQ(w[1], 0);
  EXPECT_NEAR(w[6] + w[7] + w[8], 1, 1e-15);
}

TEST(MultiHeadAttention, RefusesSizesThatDoNotFitNamingBoth) {
  const auto refusal = [](const Options& o) {
    try {
      MultiHeadAttention layer(o);
      return std::string("accepted");
    } catch (const OptionError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_THAT(refusal({.width = 10, .heads = 3}), HasSubstr("width 10 is no multiple of 3 heads"));
  EXPECT_THAT(refusal({.width = 12, .heads = 4, .key_heads = 3}), HasSubstr("4 heads are no multiple of 3 key heads"));
  EXPECT_THAT(refusal({.width = 0}), HasSubstr("width is 0"));
  MultiHeadAttention layer({.width = 8, .heads = 2});
  const float x[16] = {};
  Tape tape;
  EXPECT_THROW(layer(tape, tape.constant(View<const float>(x, {1, 4, 4}))), ShapeError);
  EXPECT_THROW(layer(tape, tape.constant(View<const float>(x, {2, 8}))), ShapeError);
}

TEST(Layers, ARowHasTheSameBitsWhateverTheNumberOfRows) {
  Linear layer({.in = 24, .out = 50}), back({.in = 25, .out = 24});
  Norm norm({.dim = 24});
  fill(layer), fill(back);
  const auto run = [&](Tape& tape, const Variable& x) {
    return back(tape, activate_gated(tape, Activation::kSilu, layer(tape, norm(tape, x))));
  };
  Array x(DType::kFloat32, {37, 24});
  fill_normal(x.view(), 1, {.seed = 1});
  Tape tape({.training = false});
  const Variable all = run(tape, tape.constant(x.view()));
  for (int64_t row = 0; row < 37; ++row) {
    const View<const float> one(static_cast<const float*>(x.data()) + row * 24, {1, 24});
    const Variable alone = run(tape, tape.constant(one));
    EXPECT_EQ(std::memcmp(alone.value().data, static_cast<const float*>(all.value().data) + row * 24, 96), 0) << row;
  }
}

}  // namespace
}  // namespace qkv::nn
