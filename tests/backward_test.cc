// What backward() promises beside right numbers: what has no influence, what may be asked for, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "tests/support/backward.h"
#include "tests/support/message.h"
#include "tests/support/options.h"

namespace qkv::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Case medium(unsigned seed = 1) {
  return {.dtype = kFloatTypes[seed % 4],
          .batch = 2,
          .group = 2,
          .queries = 61,
          .keys = 213,
          .head_dim = 9,
          .value_dim = 10,
          .seed = seed};
}
template <class F> void each_option(F f) {
  unsigned seed = 0;
  for (const Option& option : options()) {
    Case c = medium(++seed);
    option.set(c);
    std::ostringstream trace;
    trace << option.name << ", " << c;
    SCOPED_TRACE(trace.str());
    f(c);
  }
}

/// Row i of head h of entry b, of a tensor that may be packed by these lengths.
double at(const Example& e, const Tensor& t, const Tensor& starts, int64_t b, int64_t h, int64_t i, int64_t d) {
  return element(e, t, b, h, (e.shape.packed ? int64_t(starts.get(b)) : 0) + i, d);
}

bool same(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// Whether row i of head h of entry b holds the same bits in both tensors, which may be packed by these lengths.
::testing::AssertionResult same_row(const Example& e, const Tensor& x, const Tensor& y, const Tensor& starts, int64_t b,
                                    int64_t h, int64_t i) {
  const int64_t width = x.layout().shape[size_t(x.layout().rank - 1)];
  for (int64_t d = 0; d < width; ++d)
    if (!same(at(e, x, starts, b, h, i, d), at(e, y, starts, b, h, i, d)))
      return failure("row " + std::to_string(i) + " of head " + std::to_string(h) + " of entry " + std::to_string(b));
  return ::testing::AssertionSuccess();
}

/// A case with its gradients, to be compared with those of a spoilt copy.
struct Clean {
  explicit Clean(const Case& c)
      : example(c), in(example.inputs()), problem(example.attention, in), by(example), before(slopes(example, by)) {}
  Example example;
  Inputs in;
  reference::Problem problem;
  Loss by;
  Slopes before;
};

TEST(Backward, HiddenKeysAndValuesHaveNoInfluence) {
  each_option([](const Case& c) {
    const Clean clean(c);
    const Example& e = clean.example;
    for (const int64_t b : {0, 1})
      for (const int64_t j : {int64_t{0}, clean.problem.columns(b) / 2, clean.problem.columns(b) - 1}) {
        if (j < 0 || j >= clean.problem.columns(b)) continue;
        Example spoilt = e;
        const int64_t row = (c.packed ? int64_t(e.cumulative_key_lengths.get(b)) : 0) + j;
        for (Tensor* t : {&spoilt.key, &spoilt.value})
          for (int64_t d = 0; d < (t == &spoilt.key ? c.head_dim : c.value_dim); ++d)
            c.packed ? t->set(kNan, row, 0, d) : t->set(kNan, b, 0, row, d);
        const Slopes after = slopes(spoilt, clean.by);
        bool seen_by_any = false;
        for (int64_t h = 0; h < c.query_heads(); ++h)
          for (int64_t i = 0; i < clean.problem.queries(b); ++i) {
            const bool sees = clean.problem.sees(clean.problem.site(b, h, i, j));
            seen_by_any |= sees;
            if (sees) continue;
            ASSERT_TRUE(same_row(e, clean.before.dquery, after.dquery, e.cumulative_query_lengths, b, h, i))
                << "dquery, key " << j;
          }
        if (seen_by_any) continue;
        EXPECT_TRUE(same_bits(clean.before, after)) << "key " << j << " of entry " << b;
      }
  });
}

TEST(Backward, AQueryThatIsNoNumberSpoilsTheKeysThatItSeesAndNoOther) {
  each_option([](const Case& c) {
    const Clean clean(c);
    const Example& e = clean.example;
    const int64_t b = 0, h = 1;
    for (const int64_t i : {int64_t{0}, clean.problem.queries(b) / 2}) {
      if (i >= clean.problem.queries(b)) continue;
      for (const double bad : {kNan, kInf}) {
        Example spoilt = e;
        for (int64_t d = 0; d < c.head_dim; ++d)
          c.packed ? spoilt.query.set(bad, i, h, d) : spoilt.query.set(bad, b, h, i, d);
        const Slopes after = slopes(spoilt, clean.by);
        for (int64_t j = 0; j < clean.problem.columns(b); ++j) {
          if (clean.problem.sees(clean.problem.site(b, h, i, j))) continue;
          ASSERT_TRUE(same_row(e, clean.before.dkey, after.dkey, e.cumulative_key_lengths, b, 0, j))
              << "dkey, query " << i << " is " << bad;
          ASSERT_TRUE(same_row(e, clean.before.dvalue, after.dvalue, e.cumulative_key_lengths, b, 0, j))
              << "dvalue, query " << i << " is " << bad;
        }
        for (int64_t other = 0; other < clean.problem.queries(b); ++other) {
          if (other == i) continue;
          ASSERT_TRUE(same_row(e, clean.before.dquery, after.dquery, e.cumulative_query_lengths, b, h, other))
              << "dquery";
        }
      }
    }
  });
}

TEST(Backward, RowsWithoutAVisibleKeyGiveAndGetExactZeros) {
  Case c = medium();
  c.dtype = DType::kFloat32;
  c.keep_mask = c.sinks = true;
  Example e(c);
  e.keep_mask.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    if (i % 3 == 0) e.keep_mask.set(0, b, h, i, j);
  });
  Loss by(e);
  const Slopes clean = slopes(e, by);
  by.dout.each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
    if (i % 3 == 0) by.dout.set(kNan, b, h, i, d);
  });
  const Slopes got = slopes(e, by);
  EXPECT_TRUE(same_bits(clean, got));
  got.dquery.each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
    EXPECT_TRUE(i % 3 != 0 || same(got.dquery.get(b, h, i, d), 0.0)) << i;
  });
}

/// Entry b of a batch as a batch of its own.
struct Alone {
  Inputs in;
  Upstream up;
  Tensor query_lengths, key_lengths;  ///< cumulative
  int64_t first_query = 0, last_query = 0, first_key = 0, last_key = 0;

  Alone(const Example& e, const Upstream& all, int64_t b) : in(e.inputs()), up(all) {
    const bool packed = e.shape.packed;
    if (packed) {
      first_query = int64_t(e.cumulative_query_lengths.get(b)),
      last_query = int64_t(e.cumulative_query_lengths.get(b + 1));
      first_key = int64_t(e.cumulative_key_lengths.get(b)), last_key = int64_t(e.cumulative_key_lengths.get(b + 1));
      query_lengths = int32s({0, double(last_query - first_query)});
      key_lengths = int32s({0, double(last_key - first_key)});
      in.cumulative_query_lengths = query_lengths.as<int32_t>(), in.cumulative_key_lengths = key_lengths.as<int32_t>();
    }
    const auto entry = [b](auto view) { return view && view.shape[0] > 1 ? slice(view, 0, b, b + 1) : view; };
    const auto rows = [&](auto view, int64_t first, int64_t last) {
      return packed && view ? slice(view, 0, first, last) : entry(view);
    };
    const auto matrix = [&](auto view) {
      view = entry(view);
      if (packed && view && view.shape[2] > 1) view = slice(view, 2, 0, last_query - first_query);
      if (packed && view && view.shape[3] > 1) view = slice(view, 3, 0, last_key - first_key);
      return view;
    };
    in.query = rows(in.query, first_query, last_query);
    in.key = rows(in.key, first_key, last_key), in.value = rows(in.value, first_key, last_key);
    for (auto* v : {&in.keep_mask, &in.ignore_mask, &in.dropout_keep, &in.bias}) *v = matrix(*v);
    in.query_documents = entry(in.query_documents), in.key_documents = entry(in.key_documents);
    for (auto* v : {&in.key_lengths, &in.query_offset, &in.key_start}) *v = entry(*v);
    for (auto* v : {&up.out, &up.lse, &up.dout, &up.dlse, &up.row_max, &up.row_sum})
      *v = rows(*v, first_query, last_query);
  }
  /// What belongs to it of a tensor like query (or like key) of the whole batch.
  template <class V> V part(const Example& e, V t, int64_t b, bool of_queries) const {
    if (!e.shape.packed) return slice(t, 0, b, b + 1);
    return of_queries ? slice(t, 0, first_query, last_query) : slice(t, 0, first_key, last_key);
  }
};

TEST(Backward, OfABatchEntryIsTheSameAlone) {
  each_option([](const Case& c) {
    const Example e(c);
    const Loss by(e);
    const Left left(e);
    const Upstream up = left.upstream(by);
    Slopes all(e, Placement::kContiguous);
    backward(e.attention, e.inputs(), up, all.views());
    for (int64_t b = 0; b < (e.inputs().dropout_seed ? 1 : c.batch); ++b) {  // another entry has another draw
      const Alone entry(e, up, b);
      Slopes alone(e, Placement::kContiguous);
      backward(e.attention, entry.in, entry.up,
               {.dquery = entry.part(e, alone.dquery.view(), b, true),
                .dkey = entry.part(e, alone.dkey.view(), b, false),
                .dvalue = entry.part(e, alone.dvalue.view(), b, false)});
      for (const auto& [x, y] :
           {std::pair{&all.dquery, &alone.dquery}, {&all.dkey, &alone.dkey}, {&all.dvalue, &alone.dvalue}}) {
        const bool of_queries = x == &all.dquery;
        EXPECT_TRUE(same_bits(entry.part(e, x->view(), b, of_queries), entry.part(e, y->view(), b, of_queries))) << "entry " << b;
      }
    }
  });
}

TEST(Backward, RowsWhoseScoresOverflowGiveAndGetExactZeros) {
  Case c{.dtype = DType::kFloat64, .queries = 2, .keys = 4, .head_dim = 1, .value_dim = 2};
  for (const double query : {kInf, 1e200})
    for (const Sums sums : {Sums::kExact, Sums::kOnlyLse}) {
      Example e(c);
      e.query.set(query, 0, 0, 0, 0), e.query.set(1, 0, 0, 1, 0);
      for (int64_t j = 0; j < 4; ++j) e.key.set(-1e200 * double(1 + j % 2), 0, 0, j, 0);
      Loss by(e);
      const Slopes clean = slopes(e, by, {}, Placement::kContiguous, sums);
      by.dout.set(kNan, 0, 0, 0, 0);
      const Slopes got = slopes(e, by, {}, Placement::kContiguous, sums);
      EXPECT_TRUE(same_bits(clean, got));
      EXPECT_TRUE(same(got.dquery.get(0, 0, 0, 0), 0.0));
      for (const Tensor* t : {&got.dkey, &got.dvalue})
        t->each([&](int64_t x, int64_t h, int64_t i, int64_t d) { EXPECT_TRUE(std::isfinite(t->get(x, h, i, d))); });
    }
}

TEST(Backward, AskingForLessChangesNoBitOfTheRest) {
  each_option([](const Case& c) {
    const Example e(c);
    const Loss by(e);
    const Left left(e);
    Slopes all(e, Placement::kContiguous), some(e, Placement::kContiguous);
    backward(e.attention, e.inputs(), left.upstream(by), all.views());
    for (const auto wanted : {&Gradients::dquery, &Gradients::dkey, &Gradients::dvalue, &Gradients::dbias,
                              &Gradients::dalibi_slopes, &Gradients::dsinks}) {
      Gradients one;
      one.*wanted = some.views().*wanted;
      backward(e.attention, e.inputs(), left.upstream(by), one);
    }
    for (const NamedGradient& p : some.views().dparameters)
      backward(e.attention, e.inputs(), left.upstream(by), {.dparameters = {p}});
    EXPECT_TRUE(same_bits(all, some));
  });
}

TEST(Backward, AddsToWhatIsThereWhereAsked) {
  each_option([](Case c) {
    c.dtype = DType::kFloat64;
    const Example e(c);
    const Loss by(e);
    const Left left(e);
    Slopes once(e, Placement::kContiguous), twice(e, Placement::kContiguous);
    backward(e.attention, e.inputs(), left.upstream(by), once.views());
    backward(e.attention, e.inputs(), left.upstream(by), twice.views());
    Gradients more = twice.views();
    more.add = true;
    backward(e.attention, e.inputs(), left.upstream(by), more);
    const auto expect_double = [](std::string_view name, const Tensor& x, const Tensor& y) {
      x.each([&](int64_t a, int64_t b, int64_t i, int64_t d) {
        ASSERT_NEAR(2 * x.get(a, b, i, d), y.get(a, b, i, d), 1e-12 * (1 + std::abs(y.get(a, b, i, d)))) << name;
      });
    };
    expect_double("dquery", once.dquery, twice.dquery);
    expect_double("dkey", once.dkey, twice.dkey);
    expect_double("dvalue", once.dvalue, twice.dvalue);
    once.each_parameter([&](std::string_view name, const Tensor& x) {
      twice.each_parameter([&](std::string_view other, const Tensor& y) {
        if (name == other) expect_double(name, x, y);
      });
    });
  });
}

TEST(Backward, FromLogSumExpAloneItIsAsCloseAsItsRoundingAllows) {
  for (const double magnitude : {1.0, 3.0, 100.0})  // scores of 1e4
    each_option([magnitude](Case c) {
      c.magnitude = c.dtype == DType::kFloat16 ? std::min(magnitude, 60.0) : magnitude;
      const Example e(c);
      EXPECT_TRUE(slopes_within_bound(e, Sums::kOnlyLse));
    });
}

TEST(Backward, IsFiniteWhereTheMathematicsIs) {
  const auto expect_finite = [](const Example& e) {
    const Loss by(e);
    const Left left(e);
    const ExpectedSlopes expected(e, by, left);
    Slopes got(e, Placement::kContiguous);
    backward(e.attention, e.inputs(), left.upstream(by), got.views());
    EXPECT_TRUE(expected.within_bound(e, got)) << e.shape;
  };
  Case c{.queries = 20, .keys = 30, .head_dim = 8, .value_dim = 8};
  for (const DType type : kFloatTypes) {
    c.dtype = type;
    Case huge = c;
    huge.magnitude = type == DType::kFloat16 ? 60 : 100;  // scores of 1e4
    expect_finite(Example(huge));
    Example equal(c);
    equal.query.fill(1.0), equal.key.fill(2.0);
    expect_finite(equal);
    Case one = c;
    one.keys = 1;
    expect_finite(Example(one));
    for (const double sink : {-50.0, 50.0}) {
      Case with = c;
      with.sinks = true;
      Example e(with);
      e.sinks.fill(sink);
      expect_finite(e);
    }
  }
}

TEST(Backward, OfTypesAtTheEndOfTheirRange) {
  Case c{.dtype = DType::kFloat16, .queries = 9, .keys = 11, .head_dim = 4, .value_dim = 4};
  Example e(c);
  e.value.each([&](int64_t a, int64_t b, int64_t i, int64_t d) { e.value.set(i % 2 ? 65504 : -65504, a, b, i, d); });
  Loss by(e);
  by.dout.each(
      [&](int64_t a, int64_t b, int64_t i, int64_t d) { by.dout.set(by.dout.get(a, b, i, d) * 0.01, a, b, i, d); });
  const Slopes got = slopes(e, by);
  for (const Tensor* t : {&got.dquery, &got.dkey, &got.dvalue})
    t->each([&](int64_t a, int64_t b, int64_t i, int64_t d) { EXPECT_TRUE(std::isfinite(t->get(a, b, i, d))); });
}

/// Keeps what it sees of every pair.
struct Recorder {
  Tensor* seen;
  void see(double x, Site at) { seen->set(x, at.batch, at.head, at.row, at.column); }
  void join(const Recorder&) {}
};

TEST(Backward, GradientsByWeightsAndScoresCanBeObserved) {
  each_option([](Case c) {
    c.dtype = DType::kFloat64;
    const Example e(c);
    const Inputs in = e.inputs();
    const reference::Problem problem(e.attention, in);
    const Loss by(e);
    const Left left(e);
    for (const Sums sums : {Sums::kExact, Sums::kOnlyLse}) {
      Tensor dweight = e.matrix().fill(0), dscore = e.matrix().fill(0), attribution = e.matrix().fill(0);
      for (const auto& [what, to] : {std::pair{PairGradient::kWeight, &dweight},
                                     {PairGradient::kScore, &dscore},
                                     {PairGradient::kAttribution, &attribution}}) {
        Recorder recorder{to};
        observe_gradients(e.attention, in, left.upstream(by, sums), what, {recorder});
      }
      for (int64_t b = 0; b < c.batch; ++b)
        for (int64_t h = 0; h < c.query_heads(); ++h)
          for (int64_t i = 0; i < problem.queries(b); i += 7) {
            const reference::RowAnswer row = reference::oracle(problem, b, h, i);
            double delta = -at(e, by.dlse, e.cumulative_query_lengths, b, h, i, 0);
            for (int64_t d = 0; d < c.value_dim; ++d)
              delta += at(e, by.dout, e.cumulative_query_lengths, b, h, i, d) * row.out[size_t(d)];
            for (int64_t j = 0; j < problem.columns(b); ++j) {
              const Site site = problem.site(b, h, i, j);
              double right = 0;
              if (problem.sees(site)) {
                const std::vector<double> value = problem.value(b, h, j);
                for (int64_t d = 0; d < c.value_dim; ++d)
                  right += at(e, by.dout, e.cumulative_query_lengths, b, h, i, d) * value[size_t(d)];
                right *= problem.dropout(site);
              }
              const double weight = row.weights[size_t(j)];
              ASSERT_NEAR(dweight.get(b, h, i, j), right, 1e-9) << b << h << i << " " << j;
              ASSERT_NEAR(dscore.get(b, h, i, j), weight * (right - delta), 1e-9) << b << h << i << " " << j;
              ASSERT_NEAR(attribution.get(b, h, i, j), weight * right, 1e-9) << b << h << i << " " << j;
            }
          }
    }
  });
}

TEST(Backward, ASinkOfMinusInfinityGetsNothing) {
  Example e({.dtype = DType::kFloat32,
             .queries = 3,
             .keys = 4,
             .head_dim = 2,
             .value_dim = 2,
             .key_lengths = true,
             .sinks = true});
  e.key_lengths.fill(0.0), e.sinks.fill(-kInf);
  const Loss by(e);
  for (const Sums sums : {Sums::kExact, Sums::kOnlyLse})
    EXPECT_EQ(slopes(e, by, {}, Placement::kContiguous, sums).dsinks.get(0), 0);
}

TEST(Backward, OfAWindowCostsWhatTheWindowDoes) {
  // Steps that see none of an item's keys are passed at once: 16 times the length, about 16 times the time, not 256 times.
  const auto seconds = [](int length) {
    const Example e({.queries = length,
                     .keys = length,
                     .head_dim = 8,
                     .value_dim = 8,
                     .causal = true,
                     .window = true,
                     .left = 15,
                     .right = 0});
    const Loss by(e);
    const Left left(e);
    Slopes s(e, Placement::kContiguous);
    double best = 1e9;
    ThreadPool one(1);
    for (int n = 0; n < 3; ++n) {
      const auto start = std::chrono::steady_clock::now();
      backward(e.attention, e.inputs(), left.upstream(by), s.views(), {.executor = &one});
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  EXPECT_LT(seconds(65536), 64 * seconds(4096));
}

TEST(Backward, OfEmptyTensors) {
  for (const auto& [queries, keys, dim, value] :
       {std::tuple{0, 5, 3, 2}, {5, 0, 3, 2}, {5, 6, 0, 2}, {5, 6, 3, 0}, {0, 0, 0, 0}}) {
    const Example e({.batch = 2, .queries = queries, .keys = keys, .head_dim = dim, .value_dim = value, .sinks = true});
    const Loss by(e);
    const Slopes got = slopes(e, by);
    for (const Tensor* t : {&got.dquery, &got.dkey, &got.dvalue})
      t->each([&](int64_t a, int64_t b, int64_t i, int64_t d) { EXPECT_FALSE(std::isnan(t->get(a, b, i, d))); });
  }
}

TEST(Backward, StopsWhenAsked) {
  const Example e({.queries = 200, .keys = 600, .head_dim = 8, .value_dim = 8});
  const Loss by(e);
  const Left left(e);
  Slopes got(e, Placement::kContiguous);
  std::stop_source source;
  source.request_stop();
  ThreadPool two(2);
  EXPECT_THROW(
      backward(e.attention, e.inputs(), left.upstream(by), got.views(), {.executor = &two, .stop = source.get_token()}),
      Cancelled);
}

TEST(Backward, SaysWhatIsWrong) {
  using ::testing::HasSubstr;
  const Example e({.queries = 3, .keys = 4, .head_dim = 2, .value_dim = 2, .sinks = true});
  const Loss by(e);
  const Left left(e);
  const auto message = [&](auto change) {
    Slopes s(e, Placement::kContiguous);
    Upstream up = left.upstream(by);
    Gradients g = s.views();
    Tensor wrong(DType::kFloat64, {1, 1, 3, 2}), other(DType::kFloat32, {1, 1, 3, 5});
    change(up, g, wrong, other);
    return message_of<ArgumentError>([&] { backward(e.attention, e.inputs(), up, g); });
  };
  EXPECT_THAT(message([](auto& up, auto&, auto&, auto&) { up.out = {}; }), HasSubstr("out is missing"));
  EXPECT_THAT(message([](auto& up, auto&, auto&, auto&) { up.dout = {}; }), HasSubstr("dout is missing"));
  EXPECT_THAT(message([](auto& up, auto&, auto&, auto&) { up.row_max = {}; }),
              HasSubstr("row_sum is given without row_max"));
  EXPECT_THAT(message([](auto& up, auto&, auto&, auto&) { up.row_max = up.row_sum = up.lse = {}; }),
              HasSubstr("ask forward() for them"));
  EXPECT_THAT(message([](auto& up, auto&, auto& wrong, auto&) { up.dout = wrong.view(); }),
              HasSubstr("dout has type float64"));
  EXPECT_THAT(message([](auto&, auto& g, auto&, auto& other) { g.dquery = other.view(); }),
              HasSubstr("dquery has shape {1, 1, 3, 5}, expected {1, 1, 3, 2}"));
  EXPECT_THAT(message([](auto&, auto& g, auto& wrong, auto&) { g.dkey = wrong.view(); }),
              HasSubstr("dkey has type float64"));
  EXPECT_THAT(message([](auto&, auto& g, auto&, auto& other) { g.dsinks = other.view(); }),
              HasSubstr("gradient by sinks"));
  EXPECT_THAT(message([](auto&, auto& g, auto&, auto& other) { g.dbias = other.view(); }),
              HasSubstr("no step of the attention reads it"));
  const Example twice({.queries = 3, .keys = 4, .head_dim = 2, .value_dim = 2, .bias = true});
  EXPECT_THAT(message_of<OptionError>([&] {
                Example e2 = twice;
                e2.attention.score(Bias{});
                const Loss by2(e2);
                slopes(e2, by2);
              }),
              HasSubstr("two steps of the attention read it"));
  EXPECT_THAT(message([](auto&, auto& g, auto& wrong, auto&) {
                (void)wrong;
                g.dparameters.push_back({"sinks", g.dsinks});
              }),
              HasSubstr("no step of the attention reads it"));
  const Example biased({.queries = 3, .keys = 4, .head_dim = 2, .value_dim = 2, .bias = true});
  EXPECT_THAT(message_of<OptionError>([&] {
                const Loss loss(biased);
                const Left after(biased);
                Slopes s(biased, Placement::kContiguous), more(biased, Placement::kContiguous);
                Gradients g = s.views();
                g.dparameters.push_back({"bias", more.dbias.view()});
                backward(biased.attention, biased.inputs(), after.upstream(loss), g);
              }),
              HasSubstr("asked for twice"));
  EXPECT_THAT(message([](auto&, auto& g, auto&, auto&) { g.dvalue = g.dkey; }),
              HasSubstr("dkey lies in the memory of dvalue"));
}

}  // namespace
}  // namespace qkv::testing
