// What outputs and observers may be: wrong ones are refused before anything is written.
#include <gtest/gtest.h>

#include <algorithm>

#include "qkv/observers.h"
#include "tests/support/spoilt_call.h"

namespace qkv::testing {
namespace {

TEST(Errors, OfObservers) {
  Tensor flat(DType::kFloat64, {2, 7}), keys(DType::kFloat64, {2, 4, 6}), picture(DType::kFloat32, {2, 4, 3, 4}),
      other(DType::kFloat32, {2, 3, 3, 4}), small(DType::kFloat32, {2, 4, 3, 3});
  const auto message = [](auto f) {
    try {
      f();
    } catch (const ArgumentError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(message([&] { Received received(flat.as<double>()); }),
            "Received: received has shape {2, 7}, expected {B, Hq, S}; allocate it so");
  EXPECT_EQ(message([&] { Pyramid p(picture.as<float>(), picture.as<float>(), 5, 7, 3); }),
            "Pyramid: cell is 3, expected a power of two from 1 to 2048; cell_for() finds one");
  EXPECT_EQ(
      message([&] { Pyramid p(picture.as<float>(), small.as<float>(), 5, 7, 2); }),
      "Pyramid: mean has shape {2, 4, 3, 3}, expected {B, Hq, 3, 4} for 5 queries, 7 keys and cells of 2; allocate it so");
  Call4 c;
  const Tensor row_max = c.lse.fill(0), row_sum = c.lse.fill(1);
  const auto observed = [&](ObserverRef who) {
    return message([&] { observe(c.attention, c.in, {row_max.view(), row_sum.view()}, {who}); });
  };
  Received received(keys.as<double>());
  EXPECT_EQ(observed(received),
            "Received: received has shape {2, 4, 6}, expected {2, 4, 7}, one number a key; allocate it so");
  Pyramid heads(other.as<float>(), other.as<float>(), 5, 7, 2);
  EXPECT_EQ(observed(heads),
            "Pyramid: made for views {2, 3, 3, 4} and {2, 3, 3, 4}, 5 queries and 7 keys, but the weights are "
            "{2, 4, 5, 7}; make one for each attention");
}

TEST(Errors, OfOutputs) {
  const auto output = [](View<void> Outputs::*which, DType type, std::vector<int64_t> shape) {
    return [=](Call4& c) {
      c.add(of(type, shape));
      c.to.*which = c.extra.view();
    };
  };
  expect_error<ShapeError>("out", {"out", "{2, 4, 5, 4}", "{2, 4, 5, 3}"},
                           output(&Outputs::out, DType::kFloat32, {2, 4, 5, 4}));
  expect_error<ShapeError>("out", {"out", "{8, 5, 3}", "{2, 4, 5, 3}"},
                           output(&Outputs::out, DType::kFloat32, {8, 5, 3}));
  expect_error<DtypeError>("out", {"out", "float64", "float32"}, output(&Outputs::out, DType::kFloat64, {2, 4, 5, 3}));
  expect_error<ShapeError>("lse", {"lse", "{2, 4, 5, 1}", "{2, 4, 5}"},
                           output(&Outputs::lse, DType::kFloat32, {2, 4, 5, 1}));
  expect_error<DtypeError>("lse", {"lse", "float16", "float32"}, output(&Outputs::lse, DType::kFloat16, {2, 4, 5}));
  expect_error<ShapeError>("row_max", {"row_max", "{2, 4, 6}", "{2, 4, 5}"},
                           output(&Outputs::row_max, DType::kFloat32, {2, 4, 6}));
  for (const auto& [which, name] : {std::pair{&Outputs::weights, "weights"},
                                    {&Outputs::raw_scores, "raw_scores"},
                                    {&Outputs::modified_scores, "modified_scores"},
                                    {&Outputs::masked_scores, "masked_scores"}}) {
    expect_error<ShapeError>("matrix", {name, "{2, 4, 5, 5}", "{2, 4, 5, 7}"},
                             output(which, DType::kFloat32, {2, 4, 5, 5}));
    expect_error<DtypeError>("matrix", {name, "float64", "float32"}, output(which, DType::kFloat64, {2, 4, 5, 7}));
  }
  expect_error<ShapeError>("entropy", {"entropy", "{2, 4, 4}", "{2, 4, 5}"}, [](Call4& c) {
    c.add(of(DType::kFloat32, {2, 4, 4}));
    c.to.rows.entropy = c.extra.as<float>();
  });
  expect_error<ShapeError>("top weights and indices", {"top_indices", "{2, 4, 5, 2}", "expected {2, 4, 5, 3}"},
                           [](Call4& c) {
                             static Tensor weights, indices;
                             weights = of(DType::kFloat32, {2, 4, 5, 3}), indices = of(DType::kInt32, {2, 4, 5, 2});
                             c.to.rows.top_weights = weights.as<float>(), c.to.rows.top_indices = indices.as<int32_t>();
                           });
  for (const double row : {-1.0, 5.0})
    expect_error<OptionError>("a row that is not there", {"matrix_rows", std::to_string(int(row)), "4"}, [=](Call4& c) {
      static Tensor matrix, rows;
      matrix = of(DType::kFloat32, {2, 4, 2, 7}), rows = int32s({0, row});
      c.to.weights = matrix.view(), c.to.matrix_rows = rows.as<int32_t>();
    });
  expect_error<OptionError>("null out", {"out", "null"}, [](Call4& c) { c.to.out.data = nullptr; });
  expect_error<OptionError>("misaligned out", {"out", "multiple of 4"},
                            [](Call4& c) { c.to.out.data = static_cast<char*>(c.to.out.data) + 2; });
}

TEST(Errors, OfOutputsThatShareMemory) {
  expect_error<OptionError>("all rows in one place", {"out", "{2, 4, 5, 3}", "one place"},
                            [](Call4& c) { c.to.out.strides[2] = 0; });
  expect_error<OptionError>("rows that run into each other", {"out", "one place"}, [](Call4& c) {
    c.to.out.strides = {12, 3, 2, 1};
  });
  expect_error<OptionError>("over the queries", {"out", "query"}, [](Call4& c) {
    c.to.out = View<void>(const_cast<void*>(c.in.query.data), c.to.out.dtype, Layout(c.to.out.shape));
  });
  expect_error<OptionError>("over the end of the values", {"lse", "value"}, [](Call4& c) {
    c.to.lse.data = static_cast<float*>(const_cast<void*>(c.in.value.data)) + 2 * 2 * 7 * 3 - 1;
  });
  expect_error<OptionError>("one output in another", {"out", "lse"},
                            [](Call4& c) { c.to.lse.data = static_cast<float*>(c.to.out.data) + 1; });
}

TEST(Errors, OutputsMayInterleaveWithInputs) {
  // q, k, v and out of every token side by side: {2, 3 tokens, 4, 1 head, 2}
  Tensor whole(DType::kFloat32, {2, 3, 4, 2});
  whole.normal(1);
  const auto part = [&](int64_t n) {
    View<void> v = whole.view();
    return View<void>(static_cast<float*>(v.data) + 2 * n, DType::kFloat32,
                      Layout(Extents{2, 1, 3, 2}, Extents{24, 2, 8, 1}));
  };
  EXPECT_NO_THROW(forward({}, {part(0), part(1), part(2)}, {.out = part(3)}));
}

TEST(Errors, OutputsMayLieRightBesideInputsOfSmallerElements) {
  alignas(4) std::byte memory[3 + 1 + 12 + 3] = {};
  Tensor q(DType::kFloat32, {1, 1, 3, 2}), k = q, v = q;
  q.normal(1), k.normal(2), v.normal(3);
  for (const int64_t place : {1, 16}) {  // three bools right before three floats, and right behind them
    auto* keep = reinterpret_cast<bool*>(memory + place);
    const View<const bool> mask(keep, {1, 1, 1, 3});
    const View<float> lse(reinterpret_cast<float*>(memory + 4), {1, 1, 3});
    std::fill_n(keep, 3, true);
    const Inputs in{.query = q.view(), .key = k.view(), .value = v.view(), .keep_mask = mask};
    EXPECT_NO_THROW(forward(Attention().visible(KeepMask{}), in, {.lse = lse})) << place;
  }
}

TEST(Errors, ACallThatAsksForNothingIsItsChecksAlone) {
  const auto spoilt = [](Call4& c) { c.to = {}, c.in.key = c.add(of(DType::kFloat32, {2, 2, 7, 5})); };
  expect_error<ShapeError>("nothing is asked for", {"key", "{2, 2, 7, 5}"}, spoilt);
  Call4 c;
  struct Untouched {
    bool sees(Site) const { throw std::logic_error("a pair was looked at"); }
  };
  c.attention.visible(Untouched{}).align(Align::kTopLeft);
  EXPECT_NO_THROW(forward(c.attention, c.in, {}));
  EXPECT_THROW(forward(c.attention, c.in, c.to), std::logic_error);
}

TEST(Errors, ValuesAreNeededWhereTheOutputIs) {
  expect_error<OptionError>("no values", {"value", "missing"}, [](Call4& c) { c.in.value = {}; });
  Call4 c, without;
  forward(c.attention, c.in, c.to);
  without.in.value = {}, without.to.out = {};
  EXPECT_NO_THROW(forward(without.attention, without.in, without.to));
  EXPECT_TRUE(same_bits(c.lse, without.lse));
}

TEST(Errors, ObserveChecksLikeForward) {
  Call4 c;
  Tensor row_max = c.lse.fill(0), row_sum = c.lse.fill(1), received(DType::kFloat64, {2, 4, 7});
  Received observer(received.as<double>());
  EXPECT_NO_THROW(observe(c.attention, c.in, {row_max.view(), row_sum.view()}, {observer}));
  const auto expect = [&](const char* part, RowSums sums, const Inputs& in) {
    try {
      observe(c.attention, in, sums, {observer});
      ADD_FAILURE() << "no error: " << part;
    } catch (const ArgumentError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("observe: "), std::string::npos) << error.what();
    }
  };
  const Tensor wrong = of(DType::kFloat32, {2, 4, 4});
  expect("row_max", {wrong.view(), row_sum.view()}, c.in);
  expect("row_sum", {row_max.view(), wrong.view()}, c.in);
  expect("row_sum", {row_max.view(), {}}, c.in);
  Inputs bad = c.in;
  bad.key = {};
  expect("key", {row_max.view(), row_sum.view()}, bad);
}

}  // namespace
}  // namespace qkv::testing
