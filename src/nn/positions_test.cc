#include "qkv/positions.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/message.h"
#include "tests/support/targets.h"

namespace qkv {
namespace {

using testing::each_instruction_set;
using testing::message_of;
using testing::same_bits;
using testing::Tensor;
using testing::tensor;

TEST(Sinusoidal, IsSineAndCosineInTurnAndEndsWithASineWhereTheWidthIsOdd) {
  each_instruction_set([](const std::string& set) {
    for (const int64_t dim : {1, 2, 5, 63, 64, 65, 129})
      for (const int64_t offset : {0, -7, 100000}) {
        Tensor table(DType::kFloat64, {5, dim}), narrow(DType::kFloat32, {5, dim}), half(DType::kFloat16, {5, dim});
        sinusoidal({.offset = offset}, table.view());
        sinusoidal({.offset = offset}, narrow.view());
        sinusoidal({.offset = offset}, half.view());
        table.each([&](int64_t l, int64_t c, int64_t, int64_t) {
          const double angle = double(l + offset) / std::pow(10000.0, double(c / 2 * 2) / double(dim));
          // An ulp of the angle, which is at most 1e5.
          ASSERT_NEAR(table.get(l, c), c % 2 == 0 ? std::sin(angle) : std::cos(angle), 4e-16 + 4e-16 * std::abs(angle))
              << set << " " << dim << " " << offset << " " << l << " " << c;
          ASSERT_EQ(narrow.get(l, c), double(float(table.get(l, c))));
          ASSERT_NEAR(half.get(l, c), table.get(l, c), 0x1p-12 + 1e-15);
        });
      }
  });
}

TEST(Sinusoidal, AShiftTurnsEachPairByOneAngle) {
  constexpr int64_t kDim = 64, kShift = 37;
  Tensor table(DType::kFloat64, {50, kDim}), shifted(DType::kFloat64, {50, kDim});
  sinusoidal({}, table.view());
  sinusoidal({.offset = kShift}, shifted.view());
  for (int64_t l = 0; l < 50; ++l)
    for (int64_t i = 0; i < kDim; i += 2) {
      const double angle = double(kShift) / std::pow(10000.0, double(i) / double(kDim));
      const double s = table.get(l, i), c = table.get(l, i + 1);
      ASSERT_NEAR(shifted.get(l, i), s * std::cos(angle) + c * std::sin(angle), 2e-14);
      ASSERT_NEAR(shifted.get(l, i + 1), c * std::cos(angle) - s * std::sin(angle), 2e-14);
    }
}

TEST(Sinusoidal, RowsAreTheSameAtAnyOffsetAndForIds) {
  Tensor all(DType::kFloat32, {40, 33}), two(DType::kFloat32, {2, 3, 33});
  sinusoidal({}, all.view());
  const Tensor ids = tensor(DType::kInt32, {2, 3}, {0, 39, 4, 11, 12, 0});
  sinusoidal({.ids = ids.as<int32_t>()}, two.view());
  two.each([&](int64_t b, int64_t l, int64_t c, int64_t) {
    ASSERT_EQ(two.get(b, l, c), all.get(int64_t(ids.get(b, l)), c));
  });
}

TEST(Sinusoidal, RefusesWrongTables) {
  Tensor row(DType::kFloat32, {4}), ints(DType::kInt32, {4, 4}), good(DType::kFloat32, {4, 4});
  EXPECT_EQ(message_of<ShapeError>([&] { sinusoidal({}, row.view()); }),
            "sinusoidal: table has shape {4}, expected {length, width} or {batch, length, width}");
  EXPECT_EQ(message_of<DtypeError>([&] { sinusoidal({}, ints.view()); }),
            "sinusoidal: table has type int32, expected float32, float64, float16 or bfloat16; convert it");
  EXPECT_EQ(message_of<OptionError>([&] { sinusoidal({}, good.view(), 0); }),
            "sinusoidal: base is 0, expected 1 or more");
}

TEST(PositionIds, CountTokensWhereverThePaddingIs) {
  const Tensor mask = tensor(DType::kBool, {4, 4}, {0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1});
  Tensor ids(DType::kInt32, {4, 4});
  position_ids(mask.as<bool>(), ids.as<int32_t>());
  const double expected[] = {0, 0, 0, 1, 0, 1, 2, 3, 0, 1, 0, 0, 0, 0, 0, 1};
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(ids.get(i / 4, i % 4), expected[i]) << i;
  Tensor wrong(DType::kInt32, {4, 3});
  EXPECT_EQ(message_of<ShapeError>([&] { position_ids(mask.as<bool>(), wrong.as<int32_t>()); }),
            "position_ids: ids has shape {4, 3}, expected {4, 4}; allocate or slice it so");
}

}  // namespace
}  // namespace qkv
