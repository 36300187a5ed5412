// What must not change a bit of the result: threads, neighbours in the batch, padding, layout, what else is asked for.
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/options.h"
#include "tests/support/targets.h"

namespace qkv::testing {
namespace {

/// Every option at a size with several tiles and blocks, in one of the element types.
template <class F> void each_option(F f) {
  unsigned turn = 0;
  for (const Option& option : options()) {
    Case c{.dtype = kFloatTypes[turn % 4],
           .batch = 3,
           .key_heads = 2,
           .queries = 53,
           .keys = 150,
           .head_dim = 19,
           .value_dim = 13,
           .seed = turn + 1};
    option.set(c);
    std::ostringstream trace;
    trace << option.name << ", " << c;
    SCOPED_TRACE(trace.str());
    f(c);
    ++turn;
  }
}

TEST(SameBits, ForAnyNumberOfThreads) {
  ThreadPool one(1);
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (const int threads : {2, 3, 8}) pools.push_back(std::make_unique<ThreadPool>(threads));
  each_option([&](const Case& c) {
    const Example e(c);
    const Result wanted = run(e, {.executor = &one});
    for (const auto& pool : pools)
      EXPECT_TRUE(same_bits(wanted, run(e, {.executor = pool.get()}))) << pool->concurrency();
    EXPECT_TRUE(same_bits(wanted, run(e))) << "default executor";
  });
}

TEST(SameBits, ForAnyPlacementOfInputsAndOutputs) {
  each_option([](Case c) {
    c.placement = Placement::kContiguous;
    const Result wanted = run(Example(c));
    for (const Placement placement : kPlacements) {
      c.placement = placement;
      EXPECT_TRUE(same_bits(wanted, run(Example(c), {}, placement))) << name(placement);
    }
  });
}

/// Which weights a seed drops depends on the place in the batch, so that only the first entry is the same alone.
int64_t comparable_entries(const Example& e) { return e.inputs().dropout_seed ? 1 : e.shape.batch; }

/// One entry of a padded batch as a batch of its own.
Inputs only_entry(const Inputs& all, int64_t b) {
  Inputs one = all;
  const int64_t batch = all.query.shape[0];
  auto cut = [&](auto& view) {
    if (view && view.shape[0] == batch) view = slice(view, 0, b, b + 1);
  };
  cut(one.query), cut(one.key), cut(one.value), cut(one.keep_mask), cut(one.ignore_mask), cut(one.bias),
      cut(one.dropout_keep);
  cut(one.query_documents), cut(one.key_documents), cut(one.key_lengths), cut(one.query_offset), cut(one.key_start);
  return one;
}

/// One sequence of a packed batch as a padded batch of one, by strides alone.
Inputs only_sequence(const Inputs& all, int64_t b) {
  Inputs one = all;
  auto unpack = [&](View<const void> packed, const View<const int32_t>& ends) {
    const View<const void> part = slice(packed, 0, ends(b), ends(b + 1));
    const int64_t shape[] = {1, part.shape[1], part.shape[0], part.shape[2]};
    const int64_t strides[] = {0, part.strides[1], part.strides[0], part.strides[2]};
    return View<const void>(part.data, part.dtype, Layout(shape, strides));
  };
  one.query = unpack(all.query, all.cumulative_query_lengths);
  one.key = unpack(all.key, all.cumulative_key_lengths);
  one.value = unpack(all.value, all.cumulative_key_lengths);
  one.cumulative_query_lengths = one.cumulative_key_lengths = {};
  const int64_t queries = one.query.shape[2], keys = one.key.shape[2],
                batch = all.cumulative_query_lengths.shape[0] - 1;
  auto cut = [&](auto& view, int query_axis, int key_axis) {
    if (!view) return;
    if (view.shape[0] == batch) view = slice(view, 0, b, b + 1);
    if (query_axis >= 0 && view.shape[size_t(query_axis)] != 1) view = slice(view, query_axis, 0, queries);
    if (key_axis >= 0 && view.shape[size_t(key_axis)] != 1) view = slice(view, key_axis, 0, keys);
  };
  cut(one.keep_mask, 2, 3), cut(one.ignore_mask, 2, 3), cut(one.bias, 2, 3), cut(one.dropout_keep, 2, 3);
  cut(one.query_documents, 1, -1), cut(one.key_documents, -1, 1), cut(one.query_offset, -1, -1),
      cut(one.key_start, -1, -1);
  return one;
}

Result run_inputs(const Attention& a, const Inputs& in, DType lse_type) {
  const Extents& q = in.query.shape;
  Result r{Tensor(in.query.dtype, {q[0], q[1], q[2], in.value.shape[3]}), Tensor(lse_type, {q[0], q[1], q[2]})};
  forward(a, in, {.out = r.out.view(), .lse = r.lse.view()});
  return r;
}

TEST(SameBits, AloneOrInABatch) {
  each_option([](const Case& c) {
    if (c.packed) return;
    const Example e(c);
    const Result whole = run(e);
    for (int64_t b = 0; b < comparable_entries(e); ++b) {
      const Result alone = run_inputs(e.attention, only_entry(e.inputs(), b), e.lse_type());
      EXPECT_TRUE(same_bits(slice(whole.out.view(), 0, b, b + 1), alone.out.view())) << "entry " << b;
      EXPECT_TRUE(same_bits(slice(whole.lse.view(), 0, b, b + 1), alone.lse.view())) << "entry " << b;
    }
  });
}

TEST(SameBits, PackedOrPadded) {
  each_option([](Case c) {
    c.packed = true;
    c.key_lengths = false;
    const Example e(c);
    const Result whole = run(e);
    for (int64_t b = 0; b < comparable_entries(e); ++b) {
      const Inputs in = only_sequence(e.inputs(), b);
      const Result alone = run_inputs(e.attention, in, e.lse_type());
      const auto first = int64_t(e.cumulative_query_lengths.get(b));
      for (int64_t h = 0; h < c.query_heads(); ++h)
        for (int64_t i = 0; i < in.query.shape[2]; ++i) {
          for (int64_t d = 0; d < c.value_dim; ++d)
            ASSERT_EQ(whole.out.get(first + i, h, d), alone.out.get(0, h, i, d))
                << b << " " << h << " " << i << " " << d;
          ASSERT_EQ(whole.lse.get(first + i, h), alone.lse.get(0, h, i)) << b << " " << h << " " << i;
        }
    }
  });
}

TEST(SameBits, WithPaddingAfterTheKeys) {
  each_option([](Case c) {
    if (c.packed) return;
    c.key_lengths = true;
    const Example e(c);
    const Result padded = run(e);
    for (int64_t b = 0; b < comparable_entries(e); ++b) {
      Inputs in = only_entry(e.inputs(), b);
      const int64_t keys = in.key_lengths(0);
      in.key_lengths = {};
      for (auto* view : {&in.key, &in.value}) *view = slice(*view, 2, 0, keys);
      for (auto* view : {&in.keep_mask, &in.ignore_mask, &in.bias, &in.dropout_keep})
        if (*view && view->shape[3] != 1) *view = slice(*view, 3, 0, keys);
      if (in.key_documents) in.key_documents = slice(in.key_documents, 1, 0, keys);
      const Result cut = run_inputs(e.attention, in, e.lse_type());
      EXPECT_TRUE(same_bits(slice(padded.out.view(), 0, b, b + 1), cut.out.view()))
          << "entry " << b << ", keys " << keys;
      EXPECT_TRUE(same_bits(slice(padded.lse.view(), 0, b, b + 1), cut.lse.view()))
          << "entry " << b << ", keys " << keys;
    }
  });
}

TEST(SameBits, WithPaddingAfterTheQueries) {
  each_option([](Case c) {
    if (c.packed || c.align == Align::kBottomRight) return;
    const Example e(c);
    const Result padded = run(e);
    for (const int64_t queries : {1, 2, 24, 40}) {
      Inputs in = e.inputs();
      in.query = slice(in.query, 2, 0, queries);
      for (auto* view : {&in.keep_mask, &in.ignore_mask, &in.bias, &in.dropout_keep})
        if (*view && view->shape[2] != 1) *view = slice(*view, 2, 0, queries);
      if (in.query_documents) in.query_documents = slice(in.query_documents, 1, 0, queries);
      const Result cut = run_inputs(e.attention, in, e.lse_type());
      EXPECT_TRUE(same_bits(slice(padded.out.view(), 2, 0, queries), cut.out.view())) << queries << " queries";
      EXPECT_TRUE(same_bits(slice(padded.lse.view(), 2, 0, queries), cut.lse.view())) << queries << " queries";
    }
  });
}

TEST(SameBits, WhereABatchSharesKeysByStrideZero) {
  Case c{.batch = 3, .key_heads = 2, .queries = 30, .keys = 140, .head_dim = 8, .value_dim = 5, .causal = true};
  Example e(c);
  for (Tensor* t : {&e.key, &e.value})
    t->fill([t](int64_t, int64_t h, int64_t j, int64_t d) { return t->get(0, h, j, d); });
  Inputs shared = e.inputs();
  shared.key.strides[0] = shared.value.strides[0] = 0;
  EXPECT_TRUE(same_bits(run(e), run_inputs(e.attention, shared, e.lse_type())));
}

TEST(SameBits, WhateverElseIsAskedFor) {
  each_option([](const Case& c) {
    const Example e(c);
    const Result wanted = run(e);
    Tensor out = e.out(), lse = e.lse(), row_max = e.lse(), row_sum = e.lse();
    Tensor entropy = e.narrow(DType::kFloat32), effective = e.narrow(DType::kFloat32),
           largest = e.narrow(DType::kFloat32);
    Tensor distance = e.narrow(DType::kFloat32), share = e.narrow(DType::kFloat32);
    Tensor index = e.narrow(DType::kInt32), visible = e.narrow(DType::kInt32);
    Tensor top = e.wide(DType::kFloat32, 3), top_index = e.wide(DType::kInt32, 3);
    Tensor weights = e.matrix(), raw = e.matrix(), modified = e.matrix(), masked = e.matrix();
    const RowStatistics rows{entropy.as<float>(),   effective.as<float>(), largest.as<float>(),
                             index.as<int32_t>(),   distance.as<float>(),  share.as<float>(),
                             visible.as<int32_t>(), top.as<float>(),       top_index.as<int32_t>()};
    forward(e.attention, e.inputs(), {.out = out.view(), .rows = rows});
    EXPECT_TRUE(same_bits(wanted.out, out)) << "with statistics, without log-sum-exp";
    out.poison();
    forward(e.attention, e.inputs(),
            {.out = out.view(),
             .lse = lse.view(),
             .row_max = row_max.view(),
             .row_sum = row_sum.view(),
             .rows = rows,
             .weights = weights.view(),
             .raw_scores = raw.view(),
             .modified_scores = modified.view(),
             .masked_scores = masked.view()});
    EXPECT_TRUE(same_bits(wanted, Result{out, lse})) << "with everything";
    out.poison();
    forward(e.attention, e.inputs(), {.out = out.view(), .weights = weights.view()});
    EXPECT_TRUE(same_bits(wanted.out, out)) << "with weights";
    lse.poison();
    forward(e.attention, e.inputs(), {.lse = lse.view()});
    EXPECT_TRUE(same_bits(wanted.lse, lse)) << "log-sum-exp alone";
  });
}

TEST(SameBits, OnInstructionSetsWithFusedMultiplyAdd) {
  each_option([](const Case& c) {
    const Example e(c);
    std::vector<std::pair<std::string, Result>> fused;
    each_instruction_set([&](const std::string& set) {
      if (set.starts_with("AVX") || set.starts_with("NEON")) fused.push_back({set, run(e)});
    });
    for (size_t n = 1; n < fused.size(); ++n)
      EXPECT_TRUE(same_bits(fused[0].second, fused[n].second)) << fused[0].first << " and " << fused[n].first;
  });
}

TEST(SameBits, WithAWorkspaceThatHasSeenOtherCalls) {
  Workspace workspace;
  each_option([&](const Case& c) {
    const Example e(c);
    EXPECT_TRUE(same_bits(run(e), run(e, {.workspace = &workspace})));
  });
}

}  // namespace
}  // namespace qkv::testing
