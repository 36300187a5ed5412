#include "qkv/part.h"

#include <gtest/gtest.h>

#include "qkv/masks.h"
#include "qkv/problem_of_case.h"
#include "tests/support/compare.h"

namespace qkv::cli {
namespace {

struct Answer {
  Array out, lse;
};

Answer answer_of(const Problem& p, DType lse_type) {
  const Sizes& s = p.sizes;
  Answer a{Array(p.inputs.query.dtype, {1, s.heads, s.queries, s.value_dim}), Array(lse_type, {1, s.heads, s.queries})};
  forward(p.attention, p.inputs, {.out = a.out.view(), .lse = a.lse.view()});
  return a;
}

TEST(Part, HasTheBitsOfTheWhole) {
  for (const testing::Case& c : small_cases()) {
    const testing::Example example(c);
    const Problem whole = problem_of(example);
    const testing::Result all = testing::run(example);
    for (int64_t b = 0; b < c.batch; ++b) {
      const int64_t queries = queries_of(whole, b);
      if (queries == 0) continue;
      const int64_t h = (b + c.seed) % c.query_heads(), i = c.seed % queries;
      const Problem row = part_of(whole, {b, h, i, 1}), heads = part_of(whole, {.batch = b});
      const Answer one = answer_of(row, example.lse_type()), many = answer_of(heads, example.lse_type());
      for (const auto& [whole_view, one_view, many_view] :
           {std::tuple{all.out.view(), std::as_const(one.out).view(), std::as_const(many.out).view()},
            std::tuple{all.lse.view(), std::as_const(one.lse).view(), std::as_const(many.lse).view()}}) {
        const View<const void> expected = row_of(whole, whole_view, b, h, i);
        EXPECT_TRUE(testing::same_bits(expected, row_of(row, one_view, 0, 0, 0))) << c;
        EXPECT_TRUE(testing::same_bits(expected, row_of(heads, many_view, 0, h, i))) << c;
      }
    }
  }
}

TEST(Part, IsHiddenByTheRulesOfTheWhole) {
  for (const testing::Case& c : small_cases()) {
    const testing::Example example(c);
    const Problem whole = problem_of(example);
    Array rules(DType::kUInt8, {c.batch, c.query_heads(), c.queries, c.keys});
    hiding_rule_of(whole.attention, whole.inputs, rules.view().as<uint8_t>());
    for (int64_t b = 0; b < c.batch; ++b) {
      const int64_t queries = queries_of(whole, b), h = c.seed % c.query_heads();
      if (queries == 0) continue;
      const Problem row = part_of(whole, {b, h, queries - 1, 1});
      Array own(DType::kUInt8, {1, 1, 1, row.sizes.keys});
      hiding_rule_of(row.attention, row.inputs, own.view().as<uint8_t>());
      for (int64_t j = 0; j < row.sizes.keys; ++j)
        EXPECT_EQ(own.view().as<uint8_t>()(0, 0, 0, j), rules.view().as<uint8_t>()(b, h, queries - 1, j)) << c << j;
    }
  }
}

TEST(Part, RefusesWhatForwardRefuses) {
  testing::Case c;
  c.batch = 2, c.queries = 3, c.keys = 4, c.head_dim = 2, c.value_dim = 2, c.keep_mask = true;
  testing::Example example(c);
  example.keep_mask = testing::Tensor(DType::kBool, {2, 1, 3, 5}).coins(1, 0.5);
  EXPECT_THROW(part_of(problem_of(example), {0, 0, 2, 1}), ShapeError);
}

}  // namespace
}  // namespace qkv::cli
