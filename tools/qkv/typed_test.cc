#include "qkv/typed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "qkv/error.h"
#include "qkv/projections.h"
#include "qkv/views.h"

namespace qkv::cli {
namespace {

using ::testing::ElementsAre;

template <class T> std::vector<T> numbers(const Array& a) {
  const auto* first = static_cast<const T*>(a.data());
  return {first, first + a.size()};
}

TEST(Typed, RowsEndWithSemicolons) {
  const auto q = typed_tensor("1,-2.5; 3e-1,inf", "q");
  ASSERT_TRUE(q);
  EXPECT_THAT(q->shape(), ElementsAre(2, 2));
  EXPECT_THAT(numbers<double>(*q), ElementsAre(1, -2.5, 0.3, INFINITY));
  EXPECT_THAT(typed_tensor("7", "k")->shape(), ElementsAre(1, 1));
}

TEST(Typed, TheNameSaysTheTypeAndTheAxes) {
  EXPECT_EQ(typed_tensor("1,0;0,1", "keep_mask")->dtype(), DType::kBool);
  EXPECT_THAT(typed_tensor("13,22,4", "key_lengths")->shape(), ElementsAre(3));
  EXPECT_THAT(numbers<int32_t>(*typed_tensor("-3", "q_offset")), ElementsAre(-3));
  EXPECT_THAT(typed_tensor("0.5,1", "sinks")->shape(), ElementsAre(2));
  EXPECT_EQ(numbers<double>(*typed_tensor("0,-inf", "bias"))[1], -INFINITY);
}

TEST(Typed, WhatIsNoListOfNumbersNamesAFile) {
  for (const char* file : {"q.npy", "1.npy", "1,2/q.npy", "", "a,b", "model.npz:q"})
    EXPECT_FALSE(typed_tensor(file, "q")) << file;
}

TEST(Typed, RefusesWhatCannotBeMeant) {
  for (const char* text : {"1,2;3", "1,,2", "1,2;", "1,x"}) EXPECT_THROW(typed_tensor(text, "q"), OptionError) << text;
  EXPECT_THROW(typed_tensor("1,2", "ignore_mask"), OptionError);
  EXPECT_THROW(typed_tensor("1.5", "key_lengths"), OptionError);
  EXPECT_THROW(typed_tensor("3000000000", "key_lengths"), OptionError);
  EXPECT_THROW(typed_tensor("nan", "key_lengths"), OptionError);
}

/// 0, 1, 2, ... with one number moved, so that nothing is symmetric.
Array counted(std::vector<int64_t> shape) {
  Array a(DType::kFloat32, std::move(shape));
  for (int64_t n = 0; n < a.size(); ++n) static_cast<float*>(a.data())[n] = static_cast<float>(n);
  return a;
}

Array transposed(const Array& w) {
  Array t(DType::kFloat32, {w.shape()[1], w.shape()[0]});
  for (int64_t i = 0; i < w.shape()[0]; ++i) {
    for (int64_t j = 0; j < w.shape()[1]; ++j)
      static_cast<float*>(t.data())[j * w.shape()[0] + i] = static_cast<const float*>(w.data())[i * w.shape()[1] + j];
  }
  return t;
}

TEST(Projections, AreTheSameInBothLayoutsAndCutIntoHeads) {
  const Array x = counted({2, 3, 5}), wq = counted({5, 4}), wk = counted({5, 2}), wv = counted({5, 3}),
              wo = counted({6, 7});
  const Array tq = transposed(wq), tk = transposed(wk), tv = transposed(wv), to = transposed(wo);
  const Projections p = understand_projections(x.view(), wq.view(), wk.view(), wv.view(), wo.view(), 2, "");
  const Projections t = understand_projections(x.view(), tq.view(), tk.view(), tv.view(), to.view(), 2, "");
  EXPECT_EQ(p.layout, WeightLayout::kInOut);
  EXPECT_EQ(t.layout, WeightLayout::kOutIn);
  const Array q = project(p, p.wq, 2), same = project(t, t.wq, 2);
  EXPECT_THAT(q.shape(), ElementsAre(2, 2, 3, 2));
  EXPECT_EQ(numbers<float>(q), numbers<float>(same));
  double sum = 0;  // batch entry 1, row 2, head 1, number 0: column 2 of wq
  for (int64_t e = 0; e < 5; ++e) sum += element(x.view(), 1, 2, e, 0) * element(wq.view(), e, 2, 0, 0);
  EXPECT_EQ(element(q.view(), 1, 1, 2, 0), sum);

  const Array out = project(p, p.wv, 3);  // one key head
  EXPECT_THAT(out.shape(), ElementsAre(2, 1, 3, 3));
  const Array heads = counted({2, 2, 3, 3});
  const Array y = project_out(p, heads.view()), y_same = project_out(t, heads.view());
  EXPECT_THAT(y.shape(), ElementsAre(2, 3, 7));
  EXPECT_EQ(numbers<float>(y), numbers<float>(y_same));
  double last = 0;
  for (int64_t n = 0; n < 6; ++n) last += element(heads.view(), 1, n / 3, 2, n % 3) * element(wo.view(), n, 6, 0, 0);
  EXPECT_EQ(element(y.view(), 1, 2, 6, 0), last);
}

TEST(Projections, RefuseWhatDoesNotFit) {
  const Array x = counted({3, 4}), square = counted({4, 4}), wide = counted({4, 6}), other = counted({5, 6}),
              cube = counted({2, 2, 4});
  const auto understand = [&](const Array& wq, const Array& wk, int64_t heads, const char* layout) {
    return understand_projections(x.view(), wq.view(), wk.view(), {}, {}, heads, layout);
  };
  EXPECT_THROW(understand(square, square, 2, ""), ShapeError);
  EXPECT_EQ(understand(square, square, 2, "out_in").layout, WeightLayout::kOutIn);
  EXPECT_EQ(understand(square, counted({4, 2}), 2, "").layout, WeightLayout::kInOut);  // one tells for all
  EXPECT_THROW(understand(wide, counted({2, 4}), 2, ""), ShapeError);                  // each another way
  EXPECT_THROW(understand(wide, wide, 4, ""), ShapeError);
  EXPECT_THROW(understand(wide, counted({4, 2}), 2, ""), ShapeError);
  EXPECT_THROW(understand(wide, wide, 0, ""), OptionError);
  EXPECT_THROW(understand(other, other, 2, ""), ShapeError);
  EXPECT_THROW(understand(cube, cube, 2, ""), ShapeError);
}

}  // namespace
}  // namespace qkv::cli
