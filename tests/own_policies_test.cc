// Policies of a user, compiled with the user's flags (-O2, -O3, -march=native: one program each): prefill and decode agree in
// every bit.
#include <gtest/gtest.h>

#include <cstring>

#include "examples/own_policies.h"
#include "tests/support/slopes.h"

namespace qkv::testing {
namespace {

/// A learnable table of distances with a gain: score' = score * gain[head] + table[head, clamp(key - query)].
struct RelativeTable {
  static constexpr std::string_view kName = "relative";
  static constexpr int kReads = 2;
  int reach = 0;
  Parameter table{"relative_table"}, gain{"gain"};
  auto operator()(auto score, Site at, auto& read) const {
    return score * read(gain, at.head) + read(table, at.head, std::clamp(at.key - at.query, -reach, reach) + reach);
  }
  auto fields() { return std::tie(reach); }
  auto parameters() { return std::tie(table, gain); }
};

constexpr int kLength = 300;

Example with(Attention attention, DType type) {
  Example e(Case{
      .dtype = type, .key_heads = 2, .group = 2, .queries = kLength, .keys = kLength, .head_dim = 5, .value_dim = 3});
  e.attention = std::move(attention);
  const auto names = [&](std::string_view name) {
    for (const auto& score : e.attention.scores())
      for (const std::string_view tensor : score->about().tensors)
        if (tensor == name) return true;
    return false;
  };
  if (names("relative_table")) {
    e.parameters.push_back({"relative_table", Tensor(DType::kFloat32, {4, 9}).normal(4)});
    e.parameters.push_back({"gain", Tensor(DType::kFloat64, {4}).normal(5)});
  }
  if (names("alibi_slopes")) e.alibi_slopes = Tensor(DType::kFloat32, {4}).normal(6, 0.1);
  return e;
}

/// All queries at once against `step` at a time.
void expect_steps_equal(const Example& e, int step) {
  const Result whole = run(e);
  for (int first = 0; first < kLength; first += step) {
    const int last = std::min(first + step, kLength);
    const int32_t offset = first;
    Inputs in = e.inputs();
    in.query = slice(in.query, 2, first, last);
    in.query_offset = View<const int32_t>(&offset, {1});
    Tensor out(e.shape.dtype, {1, 4, last - first, e.shape.value_dim}), lse(e.lse_type(), {1, 4, last - first});
    forward(e.attention, in, {.out = out.view(), .lse = lse.view()});
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = first; i < last; ++i) {
        const double lses[] = {whole.lse.get(0, h, i), lse.get(0, h, i - first)};
        ASSERT_EQ(std::memcmp(lses, lses + 1, sizeof(double)), 0)
            << h << " " << i << ": " << lses[0] << " and " << lses[1];
        for (int64_t d = 0; d < e.shape.value_dim; ++d) {
          const double outs[] = {whole.out.get(0, h, i, d), out.get(0, h, i - first, d)};
          ASSERT_EQ(std::memcmp(outs, outs + 1, sizeof(double)), 0)
              << h << " " << i << " " << d << ": " << outs[0] << " and " << outs[1];
        }
      }
  }
}

TEST(OwnPolicies, GiveTheSameBitsInPrefillAndDecode) {
  for (const char* text :
       {"causal | decay:0.03 | softmax", "causal window:20,0 | decay:0.03 alibi relative:4 softcap:30 | softmax",
        "prompt:7 strided:3 | relative:4 | softmax", "strided:5 | softmax",
        "prompt:200 | softcap:2 decay:0.1 | softmax"}) {
    Vocabulary own;
    own.modifier<Decay>().modifier<RelativeTable>().pattern<Prompt>().pattern<Strided>();
    for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      SCOPED_TRACE(text);
      const Example e = with(Attention::parse(text, own).align(Align::kTopLeft), type);
      expect_steps_equal(e, 1);
      expect_steps_equal(e, 7);
      expect_steps_equal(e, 130);
    }
  }
}

TEST(OwnPolicies, ThatHideNothingChangeNoBit) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const Result plain = run(with(Attention{}.visible(Causal{}), type));
    const Result own = run(with(Attention{}.visible(Causal{}).visible(Strided{1}), type));
    EXPECT_EQ(std::memcmp(plain.out.view().data, own.out.view().data, size_t(4 * kLength * 3) * size_of(type)), 0);
  }
}

TEST(OwnPolicies, GiveTheSameBitsForAnyNumberOfThreads) {
  ThreadPool one(1), three(3);
  const Example e = with(Attention{}.visible(Prompt{50}).visible(Strided{2}).score(Decay{0.2f}), DType::kFloat32);
  const Result a = run(e, {.executor = &one}), b = run(e, {.executor = &three});
  EXPECT_EQ(std::memcmp(a.out.view().data, b.out.view().data, size_t(4 * kLength * 3) * sizeof(float)), 0);
}

Example small(Attention attention) {
  Example e(Case{.dtype = DType::kFloat64,
                 .batch = 2,
                 .key_heads = 2,
                 .group = 2,
                 .queries = 6,
                 .keys = 6,
                 .head_dim = 3,
                 .value_dim = 2});
  e.attention = std::move(attention).align(Align::kTopLeft);
  return e;
}

TEST(OwnPolicies, TrainWithoutALineMore) {
  for (Attention a :
       {Attention{}.visible(Causal{}).score(Decay{0.3f}), Attention{}.visible(Prompt{3}).visible(Strided{2}),
        Attention{}.score(Decay{0.3f}).score(SoftCap{2}).score(Decay{-0.1f})}) {
    Example e = small(a);
    SCOPED_TRACE(e.attention.text());
    expect_slopes(e);
  }
}

TEST(OwnPolicies, TheirTablesHaveGradientsToo) {
  for (Attention a :
       {Attention{}.score(RelativeTable{2}), Attention{}.visible(Causal{}).score(SoftCap{3}).score(RelativeTable{2}),
        Attention{}.score(RelativeTable{2}).score(SoftCap{3}).score(Decay{0.1f})}) {
    Example e = small(a);
    e.parameters.push_back({"relative_table", Tensor(DType::kFloat64, {4, 5}).normal(4)});
    e.parameters.push_back({"gain", Tensor(DType::kFloat64, {4}).normal(5)});
    SCOPED_TRACE(e.attention.text());
    expect_slopes(e);
  }
}

/// The same formula twice: with dual numbers, and with a derivative of its own.
struct Squash {
  auto operator()(auto score, Site) const { return score / (abs_of(score) + 1.0f); }
  template <class T> static T abs_of(const T& x) { return x < T(0) ? T(0) - x : x; }
};
struct SquashWithDerivative : Squash {
  auto derivative(auto score, Site) const {
    const auto below = abs_of(score) + 1;
    return 1 / (below * below);
  }
};

TEST(OwnPolicies, ADerivativeOfTheirOwnIsUsedAndAgreesWithDualNumbers) {
  Example dual = small(Attention{}.score(Squash{})), own = small(Attention{}.score(SquashWithDerivative{}));
  expect_slopes(dual);
  expect_slopes(own);
  struct Wrong : Squash {
    double derivative(double, Site) const { return 0; }
  };
  Example wrong = small(Attention{}.score(Wrong{}));
  const Slopes got = slopes(wrong, Loss(wrong));
  got.dquery.each([&](int64_t b, int64_t h, int64_t i, int64_t d) { EXPECT_EQ(got.dquery.get(b, h, i, d), 0); });
}

/// The gain of a head, with a derivative that is wrong on purpose.
struct Gain {
  Parameter gain{"gain"};
  auto operator()(auto score, Site at, auto& read) const { return score * read(gain, at.head); }
  auto derivative(auto, Site at, auto& read) const { return 2 * read(gain, at.head); }
  auto parameters() { return std::tie(gain); }
};

TEST(OwnPolicies, ADerivativeOfTheirOwnIsUsedWhateverElseIsAskedFor) {
  Example e = small(Attention{}.score(Gain{}));
  e.parameters.push_back({"gain", Tensor(DType::kFloat64, {4}).normal(5)});
  const Loss by(e);
  const Left left(e);
  const Slopes all = slopes(e, by);
  Slopes alone(e, Placement::kContiguous);
  Gradients g = alone.views();
  g.dparameters.clear();
  backward(e.attention, e.inputs(), left.upstream(by), g);
  all.dquery.each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
    EXPECT_EQ(all.dquery.get(b, h, i, d), alone.dquery.get(b, h, i, d));
  });
  EXPECT_FALSE(is_slope("dquery", e, by, e.query, all.dquery)) << "the wrong derivative went unused";
}

/// Whatever functions numbers have.
struct Wave {
  auto operator()(auto score, Site at) const {
    using std::erf, std::pow, std::sin;
    auto x = sin(score) + at.key;
    x += pow(score, 2) * 0.1f;
    return x >= 0 ? x * erf(score) : x;
  }
};

TEST(OwnPolicies, MayUseTheFunctionsThatNumbersHave) {
  Example e = small(Attention{}.visible(Causal{}).score(Wave{}));
  expect_slopes(e);
}

struct ReadsMoreThanItSays {
  Parameter a{"a"};
  auto operator()(auto score, Site, auto& read) const { return score + read(a, 0) * read(a, 1); }
  auto parameters() { return std::tie(a); }
};

TEST(OwnPolicies, OneThatReadsMoreThanItSaysIsRefused) {
  Example e = small(Attention{}.score(ReadsMoreThanItSays{}));
  e.parameters.push_back({"a", Tensor(DType::kFloat64, {2}).normal(4)});
  EXPECT_THROW(slopes(e, Loss(e)), OptionError);
}

TEST(OwnPolicies, SumsOfTheirTablesHaveTheSameBitsForAnyThreads) {
  Example e = with(Attention{}.visible(Causal{}).score(RelativeTable{4}), DType::kFloat32);
  ThreadPool one(1), three(3);
  const Loss by(e);
  const Slopes a = slopes(e, by, {.executor = &one}), b = slopes(e, by, {.executor = &three});
  for (size_t n = 0; n < a.dparameters.size(); ++n) {
    const Tensor &x = a.dparameters[n].tensor, &y = b.dparameters[n].tensor;
    EXPECT_EQ(std::memcmp(x.view().data, y.view().data, size_t(x.size()) * sizeof(float)), 0) << a.dparameters[n].name;
  }
}

TEST(OwnPolicies, TrainWithEveryBuiltInModifierAndMaskBesideThem) {
  const auto make = [](const auto& add) {
    Attention a = Attention{}.score(RelativeTable{2});
    add(a);
    Example e = small(std::move(a));
    e.parameters.push_back({"relative_table", Tensor(DType::kFloat64, {4, 5}).normal(4)});
    e.parameters.push_back({"gain", Tensor(DType::kFloat64, {4}).normal(5)});
    return e;
  };
  const auto a_head = [](double first) {
    return Tensor(DType::kFloat64, {4}).fill([=](int64_t h, int64_t, int64_t, int64_t) {
      return first + 0.1 * double(h);
    });
  };
  struct With {
    const char* name;
    void (*attention)(Attention&);
    void (*tensors)(Example&, const Tensor& a_head);
  };
  const auto nothing = [](Example&, const Tensor&) {};
  const With all[] = {
      {"causal", [](Attention& a) { a.visible(Causal{}); }, nothing},
      {"window",
       [](Attention& a) {
         a.visible(Window{2, 1});
       },
       nothing},
      {"tiled heads", [](Attention& a) { a.heads(HeadMapping::kTiled); }, nothing},
      {"zero key", [](Attention& a) { a.zero_key(); }, nothing},
      {"soft-cap", [](Attention& a) { a.score(SoftCap{2}); }, nothing},
      {"dropout", [](Attention& a) { a.dropout(0.3); }, [](Example& e, const Tensor&) { e.shape.dropout = 0.3; }},
      {"sinks", [](Attention& a) { a.weights(SinkSoftmax{}); }, [](Example& e, const Tensor& t) { e.sinks = t; }},
      {"alibi", [](Attention& a) { a.score(Alibi{}); }, [](Example& e, const Tensor& t) { e.alibi_slopes = t; }},
      {"bias", [](Attention& a) { a.score(Bias{}); },
       [](Example& e, const Tensor&) {
         e.bias = Tensor(DType::kFloat64, {1, 4, 6, 6}).normal(8);
       }},
      {"bias a key", [](Attention& a) { a.score(Bias{}); },
       [](Example& e, const Tensor&) {
         e.bias = Tensor(DType::kFloat64, {2, 1, 1, 6}).normal(8);
       }},
      {"soft-caps", [](Attention& a) { a.score(SoftCaps{}); },
       [](Example& e, const Tensor& t) {
         e.parameters.push_back({"softcaps", t});
       }},
      {"scales", [](Attention& a) { a.score(Scales{}); },
       [](Example& e, const Tensor& t) {
         e.parameters.push_back({"scales", t});
       }},
  };
  for (const With& with : all) {
    SCOPED_TRACE(with.name);
    Example e = make(with.attention);
    with.tensors(e, a_head(0.7));
    expect_slopes(e);
  }
}

TEST(OwnPolicies, ObserverSeesEveryWeightOnce) {
  const Example e = with(Attention{}.visible(Causal{}).score(Decay{0.2f}), DType::kFloat32);
  Tensor out = e.out(), row_max = e.lse(), row_sum = e.lse();
  forward(e.attention, e.inputs(), {.out = out.view(), .row_max = row_max.view(), .row_sum = row_sum.view()});
  FarWeight everything{.distance = -1}, far{.distance = 3};
  observe(e.attention, e.inputs(), {row_max.view(), row_sum.view()}, {everything, far});
  EXPECT_NEAR(everything.all, 4 * kLength, 1e-3) << "rows sum to 1";
  EXPECT_EQ(everything.far, everything.all);
  EXPECT_EQ(far.all, everything.all);
  EXPECT_GT(far.far, 0);
  EXPECT_LT(far.far, far.all);
}

}  // namespace
}  // namespace qkv::testing
