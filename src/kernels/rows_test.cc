#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "kernels/kernels.h"
#include "tests/support/targets.h"

namespace qkv {
namespace {

/// Floats around every one that a 16-bit type has: itself, the middles to its neighbours, and what lies beside those.
template <class E> std::vector<float> floats_around() {
  std::vector<float> floats;
  for (uint32_t h = 0; h <= 0xFFFF; ++h) {
    const auto bits = std::bit_cast<uint32_t>(float(E::from_bits(uint16_t(h))));
    const auto next = std::bit_cast<uint32_t>(float(E::from_bits(uint16_t(h + 1))));
    const uint32_t middle = bits + (next - bits) / 2;
    for (const uint32_t near : {bits - 1, bits, bits + 1, middle - 1, middle, middle + 1, middle ^ 0x155u})
      floats.push_back(std::bit_cast<float>(near));
  }
  return floats;
}

template <class E> void expect_rows_rounded_like_numbers(DType type) {
  const std::vector<float> from = floats_around<E>();
  testing::each_instruction_set([&](const std::string& set) {
    for (const int columns : {1, 63, 65, int(from.size())}) {
      std::vector<E> to(size_t(columns) + 1, E::from_bits(0x1234));
      kernels::row_kernels<float>().store(from.data(), 0, 1, columns, to.data(), type, 0, 1);
      for (size_t i = 0; i < size_t(columns); ++i)
        ASSERT_EQ(to[i].bits, E(from[i]).bits) << set << " " << std::hexfloat << from[i];
      ASSERT_EQ(to.back().bits, 0x1234) << "past the end";
    }
  });
}

TEST(Rows, AreNarrowedToFloat16LikeSingleNumbers) { expect_rows_rounded_like_numbers<float16>(DType::kFloat16); }
TEST(Rows, AreNarrowedToBFloat16LikeSingleNumbers) { expect_rows_rounded_like_numbers<bfloat16>(DType::kBFloat16); }

}  // namespace
}  // namespace qkv
