// Wrong input is refused with a message that names function, argument, expected and got, before anything is written.
#include <gtest/gtest.h>

#include <limits>

#include "examples/own_policies.h"
#include "qkv/masks.h"
#include "tests/support/spoilt_call.h"

namespace qkv::testing {
namespace {

TEST(Errors, TheCallThatTheOthersSpoilIsRight) {
  Call4 c;
  EXPECT_NO_THROW(forward(c.attention, c.in, c.to));
  EXPECT_NO_THROW(forward(c.attention, {c.in.query, c.in.key, c.in.value}, {c.out.view()})) << "the shortest call";
}

TEST(Errors, OfElementTypes) {
  expect_error<DtypeError>("integer query", {"query", "int32", "float32", "query.astype(float32)"}, [](Call4& c) {
    c.in.query = c.add(of(DType::kInt32, {2, 4, 5, 4}));
  });
  expect_error<DtypeError>("integer value", {"value", "int64", "value.astype(float32)"}, [](Call4& c) {
    c.in.value = c.add(of(DType::kInt64, {2, 2, 7, 3}));
  });
  expect_error<DtypeError>("types that differ", {"query", "float32", "key", "float16"}, [](Call4& c) {
    c.in.key = c.add(of(DType::kFloat16, {2, 2, 7, 4}));
  });
  expect_error<DtypeError>("types that differ", {"query", "float32", "value", "bfloat16"}, [](Call4& c) {
    c.in.value = c.add(of(DType::kBFloat16, {2, 2, 7, 3}));
  });
  for (const DType type : {DType::kUInt8, DType::kInt32, DType::kInt64, DType::kFloat32}) {
    expect_error<DtypeError>("numbers as keep mask", {"keep_mask", "bool", qkv::name(type), "mask != 0"},
                             [&](Call4& c) {
                               c.attention.visible(KeepMask{});
                               c.in.keep_mask = c.add(of(type, {2, 4, 5, 7}));
                             });
    expect_error<DtypeError>("numbers as ignore mask", {"ignore_mask", "bool", qkv::name(type), "!= 0"}, [&](Call4& c) {
      c.attention.visible(IgnoreMask{});
      c.in.ignore_mask = c.add(of(type, {2, 4, 5, 7}));
    });
  }
  for (const DType type : {DType::kBool, DType::kInt32, DType::kUInt8})
    expect_error<DtypeError>("bias that selects", {"bias", qkv::name(type), "float32", "keep_mask"}, [&](Call4& c) {
      c.attention.score(Bias{});
      c.in.bias = c.add(of(type, {2, 4, 5, 7}));
    });
  expect_error<DtypeError>("bias of another narrow type", {"bias", "float16", "float32"}, [](Call4& c) {
    c.attention.score(Bias{});
    c.in.bias = c.add(of(DType::kFloat16, {2, 4, 5, 7}));
  });
  expect_error<DtypeError>("integer sinks", {"sinks", "int32", "float32"}, [](Call4& c) {
    c.attention.weights(SinkSoftmax{});
    c.in.sinks = c.add(of(DType::kInt32, {4}));
  });
  expect_error<DtypeError>("narrow slopes", {"alibi_slopes", "float16", "float32"}, [](Call4& c) {
    c.attention.score(Alibi{}).align(Align::kTopLeft);
    c.in.alibi_slopes = c.add(of(DType::kFloat16, {4}));
  });
  expect_error<DtypeError>("long documents", {"key_documents", "int64", "int32"}, [](Call4& c) {
    c.make({.batch = 2, .queries = 5, .keys = 7, .head_dim = 4, .value_dim = 3, .documents = true});
    c.in.key_documents = c.add(of(DType::kInt64, {2, 7}));
  });
}

TEST(Errors, OfShapes) {
  const auto shaped = [](View<const void> Inputs::*input, std::vector<int64_t> shape) {
    return [=](Call4& c) { c.in.*input = c.add(of(DType::kFloat32, shape)); };
  };
  expect_error<ShapeError>("query of rank 3", {"query", "{4, 5, 4}", "batch, heads, length, size"},
                           shaped(&Inputs::query, {4, 5, 4}));
  expect_error<ShapeError>("value of rank 2", {"value", "{7, 3}"}, shaped(&Inputs::value, {7, 3}));
  expect_error<ShapeError>("batches", {"batch", "{3, 2, 7, 4}", "{2, 4, 5, 4}"}, shaped(&Inputs::key, {3, 2, 7, 4}));
  expect_error<ShapeError>("heads that do not divide", {"key", "3", "query", "4", "multiple"}, [](Call4& c) {
    c.make({.key_heads = 3, .queries = 5, .keys = 7, .head_dim = 4, .value_dim = 3});
    c.in.query = c.add(of(DType::kFloat32, {1, 4, 5, 4}));
  });
  expect_error<ShapeError>("no key heads", {"key", "0 heads", "multiple"}, [](Call4& c) {
    c.make({.key_heads = 0, .queries = 5, .keys = 7, .head_dim = 4, .value_dim = 3});
    c.in.query = c.add(of(DType::kFloat32, {1, 4, 5, 4}));
  });
  expect_error<ShapeError>("head sizes", {"key", "5", "query", "4", "{2, 2, 7, 5}"},
                           shaped(&Inputs::key, {2, 2, 7, 5}));
  expect_error<ShapeError>("values without keys", {"value", "8", "key", "7"}, shaped(&Inputs::value, {2, 2, 8, 3}));
  expect_error<ShapeError>("heads of values", {"value", "4 heads", "key", "2"}, shaped(&Inputs::value, {2, 4, 7, 3}));
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {2, 4, 5, 6}, {2, 4, 5}, {3, 4, 5, 7}, {2, 2, 5, 7}, {2, 4, 7, 5}, {1, 1, 1, 0}}) {
    expect_error<ShapeError>("keep mask", {"keep_mask", shape_text(Layout(shape)), "{2, 4, 5, 7}"}, [&](Call4& c) {
      c.attention.visible(KeepMask{});
      c.in.keep_mask = c.add(of(DType::kBool, shape));
    });
    expect_error<ShapeError>("bias", {"bias", shape_text(Layout(shape)), "{2, 4, 5, 7}"}, [&](Call4& c) {
      c.attention.score(Bias{});
      c.in.bias = c.add(of(DType::kFloat32, shape));
    });
  }
  expect_error<ShapeError>("a sink a key head", {"sinks", "{2}", "{4}"}, [](Call4& c) {
    c.attention.weights(SinkSoftmax{});
    c.in.sinks = c.add(of(DType::kFloat32, {2}));
  });
  expect_error<ShapeError>("a slope a key head", {"alibi_slopes", "{2}", "{4}"}, [](Call4& c) {
    c.attention.score(Alibi{}).align(Align::kTopLeft);
    c.in.alibi_slopes = c.add(of(DType::kFloat32, {2}));
  });
  expect_error<ShapeError>("documents", {"query_documents", "{2, 7}", "{2, 5}"}, [](Call4& c) {
    c.make({.batch = 2, .queries = 5, .keys = 7, .head_dim = 4, .value_dim = 3, .documents = true});
    c.in.query_documents = c.add(of(DType::kInt32, {2, 7}));
  });
  expect_error<ShapeError>("key lengths", {"key_lengths", "{3}", "{2}"},
                           [](Call4& c) { c.in.key_lengths = c.add(of(DType::kInt32, {3})).as<const int32_t>(); });
  expect_error<ShapeError>("one key length for all", {"key_lengths", "{1}", "{2}"},
                           [](Call4& c) { c.in.key_lengths = c.add(of(DType::kInt32, {1})).as<const int32_t>(); });
  expect_error<ShapeError>("offsets", {"query_offset", "{3}", "{2}"},
                           [](Call4& c) { c.in.query_offset = c.add(of(DType::kInt32, {3})).as<const int32_t>(); });
  expect_error<ShapeError>("starts", {"key_start", "{2, 1}", "{2}"}, [](Call4& c) {
    c.in.key_start = c.add(of(DType::kInt32, {2, 1})).as<const int32_t>();
  });
}

/// A modifier that reads a tensor.
struct ByDistance {
  static constexpr std::string_view kName = "by_distance";
  Parameter table{"relative_table"};
  auto operator()(auto score, Site at, auto& read) const { return score + read(table, at.head, at.row); }
  auto parameters() { return std::tie(table); }
};

TEST(Errors, OfSizesThatCannotBe) {
  constexpr int64_t kTooLong = (int64_t{1} << 30) + 1;
  expect_error<ShapeError>("a negative size", {"key", "{2, 2, -7, 4}", "0 and more", "subtraction"},
                           [](Call4& c) { c.in.key.shape[2] = -7; });
  expect_error<ShapeError>("an axis past the limit",
                           {std::to_string(kTooLong), std::to_string(kTooLong - 1), "merge_partials"}, [=](Call4& c) {
                             for (View<const void>* v : {&c.in.key, &c.in.value})
                               v->shape[2] = kTooLong, v->strides[2] = 0;
                           });
  expect_error<OptionError>("positions past the limit", {"batch entry 1", "query_offset 1073741820", "1073741824"},
                            [](Call4& c) {
                              c.in.query_offset = c.add(int32s({0, (1 << 30) - 4})).as<const int32_t>();
                            });
  expect_error<OptionError>("a negative start", {"key_start[1]", "-1", "0 or more"}, [](Call4& c) {
    c.in.key_start = c.add(int32s({0, -1})).as<const int32_t>();
  });
  expect_error<ShapeError>("links", {"top_weights", "1025", "1024", "ask for weights"}, [](Call4& c) {
    static Tensor weights, indices;
    weights = of(DType::kFloat32, {2, 4, 5, 1025}), indices = of(DType::kInt32, {2, 4, 5, 1025});
    c.to.rows.top_weights = weights.as<float>(), c.to.rows.top_indices = indices.as<int32_t>();
  });
  expect_error<ShapeError>("rows as a matrix", {"matrix_rows", "{1, 1}", "{n}"}, [](Call4& c) {
    static Tensor rows;
    rows = of(DType::kInt32, {1, 1});
    c.to.matrix_rows = rows.as<int32_t>();
  });
}

TEST(Errors, OfParametersOfOnesOwn) {
  const auto with = [](std::vector<std::string_view> names, View<const void> view) {
    return [=](Call4& c) {
      c.attention.score(ByDistance{}).align(Align::kTopLeft);
      for (const std::string_view name : names) c.in.parameters.push_back({name, view});
    };
  };
  static const Tensor table = of(DType::kFloat32, {4, 9});
  expect_error<OptionError>("twice", {"'relative_table'", "twice", "leave one out"},
                            with({"relative_table", "relative_table"}, table.view()));
  expect_error<OptionError>("empty", {"'relative_table'", "is empty", "pass a view"}, with({"relative_table"}, {}));
  expect_error<OptionError>("a built-in name", {"'bias'", "place of its own", "Inputs::bias"},
                            with({"relative_table", "bias"}, table.view()));
  expect_error<OptionError>("nobody names it", {"'table'", "does not name", "leave it out"},
                            with({"relative_table", "table"}, table.view()));
  expect_error<OptionError>("missing", {"'relative_table'", "pass it"}, with({}, {}));
}

TEST(Errors, OfMoreRulesThanCanBeToldApart) {
  Call4 c;
  Tensor rule(DType::kUInt8, {2, 4, 5, 7});
  for (int n = 0; n < 254; ++n) c.attention.visible(Window{n, n});
  c.attention.align(Align::kTopLeft);
  try {
    hiding_rule_of(c.attention, c.in, rule.as<uint8_t>());
    ADD_FAILURE() << "no error";
  } catch (const OptionError& e) {
    EXPECT_STREQ(e.what(), "hiding_rule_of: the attention has 254 rules that hide, but at most 253 can be told apart");
  }
}

TEST(Errors, OfTensorsAndNames) {
  for (const auto& [input, name] :
       {std::pair{&Inputs::query, "query"}, {&Inputs::key, "key"}, {&Inputs::value, "value"}})
    expect_error<OptionError>("missing", {name, "missing"}, [input = input](Call4& c) { c.in.*input = {}; });
  expect_error<OptionError>("a bias that nobody names", {"bias", "does not name"}, [](Call4& c) {
    c.in.bias = c.add(of(DType::kFloat32, {1, 1, 1, 1}));
  });
  expect_error<OptionError>("sinks that nobody names", {"sinks", "does not name"},
                            [](Call4& c) { c.in.sinks = c.add(of(DType::kFloat32, {4})); });
  expect_error<OptionError>("a parameter that nobody names", {"gain", "does not name"}, [](Call4& c) {
    c.in.parameters.push_back({"gain", c.add(of(DType::kFloat32, {4}))});
  });
  expect_error<OptionError>("a bias without a tensor", {"bias", "none"}, [](Call4& c) { c.attention.score(Bias{}); });
  expect_error<OptionError>("sinks without a tensor", {"sinks", "none"},
                            [](Call4& c) { c.attention.weights(SinkSoftmax{}); });
  expect_error<OptionError>("a mask without a tensor", {"keep_mask", "none"},
                            [](Call4& c) { c.attention.visible(KeepMask{}); });
  expect_error<OptionError>("documents without a tensor", {"query_documents", "none"},
                            [](Call4& c) { c.attention.visible(Documents{}); });
  for (const auto& [input, name] :
       {std::pair{&Inputs::query, "query"}, {&Inputs::key, "key"}, {&Inputs::value, "value"}}) {
    expect_error<OptionError>("null", {name, "null"}, [input = input](Call4& c) { (c.in.*input).data = nullptr; });
    expect_error<OptionError>("misaligned", {name, "multiple of 4"}, [input = input](Call4& c) {
      (c.in.*input).data = static_cast<const char*>((c.in.*input).data) + 1;
    });
  }
}

TEST(Errors, OfPositions) {
  expect_error<OptionError>("causal without alignment", {"5 queries", "7 keys", "align"},
                            [](Call4& c) { c.attention.visible(Causal{}); });
  expect_error<OptionError>("window without alignment", {"align"}, [](Call4& c) { c.attention.visible(Window{3, 0}); });
  expect_error<OptionError>("alibi without alignment", {"align"}, [](Call4& c) {
    c.attention.score(Alibi{});
    c.in.alibi_slopes = c.add(of(DType::kFloat32, {4}));
  });
  expect_error<OptionError>("equal sizes but key lengths", {"align"}, [](Call4& c) {
    c.make(
        {.batch = 2, .queries = 6, .keys = 6, .head_dim = 4, .value_dim = 3, .causal = true, .align = Align::kUnset});
    c.in.key_lengths = c.add(int32s({6, 5})).as<const int32_t>();
  });
  for (const double length : {-1.0, 8.0})
    expect_error<OptionError>("key length out of range", {"key_lengths[1]", std::to_string(int(length)), "0 to 7"},
                              [=](Call4& c) {
                                c.in.key_lengths = c.add(int32s({7, length})).as<const int32_t>();
                              });
  expect_error<OptionError>("negative start", {"key_start", "-1"},
                            [](Call4& c) { c.in.key_start = c.add(int32s({-1})).as<const int32_t>(); });
}

TEST(Errors, AlignmentMayBeLeftOutWhereBothAgree) {
  for (const bool lengths : {false, true}) {
    Example e(Case{.batch = 2,
                   .queries = 6,
                   .keys = lengths ? 9 : 6,
                   .head_dim = 4,
                   .value_dim = 3,
                   .causal = true,
                   .align = Align::kUnset});
    if (lengths) e.key_lengths = int32s({6, 6});
    EXPECT_NO_THROW(run(e));
    e.attention.align(Align::kBottomRight);
    const Result bottom = run(e);
    e.attention.align(Align::kTopLeft);
    EXPECT_TRUE(same_bits(bottom, run(e)));
  }
  // Masks and documents do not look at positions.
  EXPECT_NO_THROW(run(Example(Case{.queries = 5,
                                   .keys = 7,
                                   .head_dim = 2,
                                   .value_dim = 2,
                                   .align = Align::kUnset,
                                   .documents = true,
                                   .keep_mask = true,
                                   .bias = true})));
  EXPECT_NO_THROW(run(Example(Case{.queries = 5,
                                   .keys = 7,
                                   .head_dim = 2,
                                   .value_dim = 2,
                                   .causal = true,
                                   .align = Align::kUnset,
                                   .query_offset = true})));
}

TEST(Errors, OfPackedBatches) {
  const Case packed{.batch = 2, .key_heads = 2, .queries = 5, .keys = 7, .head_dim = 4, .value_dim = 3, .packed = true};
  const auto numbers = [&](View<const int32_t> Inputs::*input, auto change) {
    return [=](Call4& c) {
      c.make(packed);
      Tensor t = input == &Inputs::cumulative_query_lengths ? c.e.cumulative_query_lengths : c.e.cumulative_key_lengths;
      change(t);
      c.in.*input = c.add(t).as<const int32_t>();
    };
  };
  expect_error<OptionError>("queries begin late", {"cumulative_query_lengths", "begins", "1", "0"},
                            numbers(&Inputs::cumulative_query_lengths, [](Tensor& t) { t.set(1, 0); }));
  expect_error<OptionError>("keys fall", {"cumulative_key_lengths", "falls", "100"},
                            numbers(&Inputs::cumulative_key_lengths, [](Tensor& t) { t.set(100, 1); }));
  expect_error<OptionError>("keys end early", {"cumulative_key_lengths", "ends"},
                            numbers(&Inputs::cumulative_key_lengths, [](Tensor& t) { t.set(t.get(2) - 1, 2); }));
  expect_error<OptionError>("queries end late", {"cumulative_query_lengths", "ends"},
                            numbers(&Inputs::cumulative_query_lengths, [](Tensor& t) { t.set(t.get(2) + 1, 2); }));
  expect_error<OptionError>("one of the two", {"cumulative_query_lengths", "cumulative_key_lengths"}, [&](Call4& c) {
    c.make(packed);
    c.in.cumulative_key_lengths = {};
  });
  expect_error<ShapeError>(
      "numbers of sequences", {"cumulative_query_lengths", "3", "cumulative_key_lengths", "2"}, [&](Call4& c) {
        c.make(packed);
        c.in.cumulative_key_lengths = c.add(int32s({0, c.e.cumulative_key_lengths.get(2)})).as<const int32_t>();
      });
  expect_error<OptionError>("key lengths too", {"key_lengths", "cumulative_key_lengths"}, [&](Call4& c) {
    c.make(packed);
    c.in.key_lengths = c.add(int32s({1, 1})).as<const int32_t>();
  });
  expect_error<ShapeError>("rank 4", {"query", "{total, heads, size}"}, [&](Call4& c) {
    c.make(packed);
    c.in.query = c.add(of(DType::kFloat32, {1, 2, 5, 4}));
  });
}

TEST(Errors, OfOptions) {
  Attention a;
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const double scale : {nan, inf, -inf}) expect_option_error({"scale"}, [&] { a.scale(scale); });
  for (const double p : {-0.1, 1.1, nan}) expect_option_error({"dropout"}, [&] { a.dropout(p); });
  for (const float cap : {0.f, -1.f, float(nan), float(inf)})
    expect_option_error({"softcap:", "above 0"}, [&] { a.score(SoftCap{cap}); });
  for (const double cap : {1e-60, 1e60}) expect_option_error({"softcap:1e", "float32"}, [&] { a.score(SoftCap{cap}); });
  expect_option_error({"strided:0", "step of 1"}, [&] { a.visible(Strided{0}); });
  expect_option_error({"strided:0", "step of 1"},
                      [] { Attention::parse("strided:0 | softmax", Vocabulary{}.pattern<Strided>()); });
  expect_option_error({"keep_mask", "'mine'", "expected 'keep_mask'"},
                      [&] { a.visible(KeepMask{.mask = Parameter("mine")}); });
  expect_option_error({"window:-2,0", "-1 for no limit"}, [&] { a.visible(Window{-2, 0}); });
  EXPECT_EQ(a, Attention{}) << "what was refused left nothing behind";
  EXPECT_NO_THROW(a.scale(0).scale(-2).dropout(0).dropout(1));
}

TEST(Errors, FindPathChecksLikeForward) {
  Call4 c;
  Inputs bad = c.in;
  bad.key = {};
  expect_option_error({"find_path: ", "key", "missing", "pass a view"}, [&] { find_path(c.attention, bad); });
  expect_option_error({"find_path: ", "key", "missing"}, [&] { explain_path(c.attention, bad); });
}

}  // namespace
}  // namespace qkv::testing
