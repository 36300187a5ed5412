#include "nn/elementwise.h"

#include "nn/test_support.h"
#include "qkv/dropout.h"

namespace qkv::nn::testing {
namespace {

TEST(Elementwise, AddsAndScalesEveryTypeAndPlacement) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t columns : kOddSizes) {
        const Tensor x = Tensor(type, {3, columns}, Placement::kGaps).normal(1),
                     y = Tensor(type, {3, columns}).normal(2);
        Tensor sum(type, {3, columns}), scaled(type, {3, columns}, Placement::kGaps), rounded(type, {1});
        add(x.view(), y.view(), sum.view());
        scale(x.view(), 0.375, scaled.view());
        x.each([&](int64_t r, int64_t c, int64_t, int64_t) {
          const double both = x.get(r, c) + y.get(r, c);
          rounded.set(type == DType::kFloat64 ? both : float(both), 0);
          EXPECT_EQ(sum.get(r, c), rounded.get(0)) << name(type) << set;
          rounded.set(x.get(r, c) * 0.375, 0);
          EXPECT_EQ(scaled.get(r, c), rounded.get(0)) << name(type) << set;
        });
      }
  });
}

TEST(Dropout, KeepsWhatTheGeneratorKeeps) {
  each_instruction_set([](const std::string& set) {
    for (const DType type : kTypes)
      for (const int64_t columns : {1, 63, 65, 1100}) {
        const DropoutOptions options{.probability = 0.25, .seed = 12345, .layer = 3, .first_row = 7};
        const Tensor x = Tensor(type, {5, columns}, Placement::kGaps).normal(1);
        Tensor y(type, {5, columns}), rounded(type, {1});
        dropout(x.view(), y.view(), options);
        x.each([&](int64_t r, int64_t c, int64_t, int64_t) {
          const Site at{0, -4, 0, 0, int32_t(7 + r), int32_t(c)};
          const bool kept = dropout_keeps(12345, dropout_threshold(0.25), at);
          const double product =
              type == DType::kFloat64 ? x.get(r, c) * (1 / 0.75) : float(x.get(r, c)) * float(1 / 0.75);
          rounded.set(kept ? product : 0, 0);
          EXPECT_EQ(y.get(r, c), rounded.get(0)) << name(type) << set << r << " " << c;
        });
      }
  });
}

TEST(Dropout, HasTheSameBitsInPartsForAnyThreadsAndBackwards) {
  const Tensor x = Tensor(DType::kFloat32, {40, 1300}).normal(1);
  DropoutOptions options{.probability = 0.1, .seed = 99};
  const Tensor all = same_for_any_threads([&](const Call& call) {
    Tensor y(DType::kFloat32, {40, 1300});
    dropout(x.view(), y.view(), options, call);
    return y;
  });
  Tensor part(DType::kFloat32, {10, 1300});
  options.first_row = 20;
  dropout(slice(x.view(), 0, 20, 30), part.view(), options);
  EXPECT_TRUE(same_bits(part.view(), slice(all.view(), 0, 20, 30)));
  int64_t dropped = 0;
  all.each([&](int64_t r, int64_t c, int64_t, int64_t) { dropped += all.get(r, c) == 0; });
  EXPECT_NEAR(double(dropped) / double(all.size()), 0.1, 0.006);
  options = {.probability = 0.1, .seed = 99, .layer = 1};
  Tensor other(DType::kFloat32, {40, 1300});
  dropout(x.view(), other.view(), options);
  EXPECT_FALSE(same_bits(all, other)) << "another layer draws other bits";
}

TEST(Dropout, OfEverythingIsZeroAlsoOfNaN) {
  Tensor x(DType::kFloat32, {2, 65});  // NaN
  dropout(x.view(), x.view(), {.probability = 1});
  EXPECT_TRUE(same_bits(x, Tensor(DType::kFloat32, {2, 65}).fill(0)));
  EXPECT_EQ(message_of<OptionError>([&] { dropout(x.view(), x.view(), {.probability = 1.5}); }),
            "dropout: probability is 1.5, expected 0 to 1; 0.1 drops a tenth");
}

}  // namespace
}  // namespace qkv::nn::testing
