#include "qkv/page_encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "qkv/float16.h"

namespace qkv::cli {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

double value(const Halves& h, size_t n) {
  return static_cast<double>(static_cast<float>(float16::from_bits(h.bits[n]))) * h.factor;
}

TEST(PageHalves, KeepThreeDigitsWhateverTheSizeOfTheNumbers) {
  for (float size : {1e-30F, 1e-3F, 1.0F, 3e4F, 1e6F, 3e38F}) {
    const std::vector<float> numbers = {size, -size / 3, size / 1000, 0};
    const Halves h = to_halves(numbers);
    for (size_t n = 0; n < numbers.size(); ++n) {
      const auto want = static_cast<double>(numbers[n]);
      EXPECT_NEAR(value(h, n), want, std::abs(want) / 2048) << size << " " << n;
    }
    EXPECT_EQ(std::exp2(std::round(std::log2(h.factor))), h.factor) << "a power of two, so that products stay exact";
  }
}

TEST(PageHalves, WhatIsNotFiniteStaysSoAndMovesNothing) {
  const Halves h = to_halves(std::vector<float>{1, kInfinity, -kInfinity, kNaN});
  EXPECT_EQ(value(h, 0), 1);
  EXPECT_EQ(value(h, 1), INFINITY);
  EXPECT_EQ(value(h, 2), -INFINITY);
  EXPECT_TRUE(std::isnan(value(h, 3)));
}

TEST(PageHalves, HiddenZeroTinyAndNaNAreFourThings) {
  const std::vector<float> weights = {1, 0, 1e-20F, kNaN, -kNaN, 0.5F};
  const Halves h = weights_to_halves(weights, std::vector<uint8_t>{0, 0, 0, 0, 0, 1});
  EXPECT_EQ(value(h, 0), 1);
  EXPECT_EQ(h.bits[1], 0);
  EXPECT_GT(value(h, 2), 0);
  EXPECT_EQ(h.bits[3], kNaNBits);
  EXPECT_EQ(h.bits[4], kNaNBits) << "no NaN looks like a hidden pair";
  EXPECT_EQ(h.bits[5], kHiddenBits);
}

TEST(PageCodes, AreWithinThreePercentFromAMillionthToOne) {
  for (double w = kSmallestCoded; w <= 1; w *= 1.0137) EXPECT_NEAR(weight_of(code_of(w)), w, 0.03 * w);
  EXPECT_EQ(weight_of(code_of(1)), 1);
  EXPECT_EQ(code_of(1.00001), kLastCode) << "rounding of a sum";
}

TEST(PageCodes, HaveZeroTinyAndNaNOfTheirOwn) {
  EXPECT_EQ(code_of(0), kZeroCode);
  EXPECT_EQ(code_of(1e-7), kTinyCode);
  EXPECT_EQ(code_of(kSmallestCoded), kFirstCode);
  EXPECT_EQ(code_of(std::nan("")), kNaNCode);
  EXPECT_TRUE(std::isnan(weight_of(kNaNCode)));
}

TEST(PageBase64, IsThatOfRfc4648) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xFB\xFF\xFE"), "+//+");
  for (size_t n = 0; n < 7; ++n) EXPECT_EQ(base64(std::string(n, 'x')).size(), base64_size(n));
}

TEST(PageJson, CannotLeaveItsScriptElement) {
  const nlohmann::json json = {"</script><script>alert(1)</script>", "<!--",
                               "a\xE2\x80\xA8"
                               "b\xE2\x80\xA9",
                               "\xE2\x82\xAC"};
  const std::string safe = script_safe(json.dump());
  EXPECT_EQ(safe.find('<'), std::string::npos);
  EXPECT_EQ(safe.find("\xE2\x80\xA8"), std::string::npos);
  EXPECT_EQ(safe.find("\xE2\x80\xA9"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(safe), json);
}

TEST(PageBlobs, HoldEqualBytesOnce) {
  Blobs blobs;
  EXPECT_EQ(blobs.add("keys"), 0);
  EXPECT_EQ(blobs.add("queries"), 1);
  EXPECT_EQ(blobs.add("keys"), 0);
  EXPECT_EQ(blobs.text(), base64("keys") + base64("queries"));
  EXPECT_THAT(blobs.ends(), ::testing::ElementsAre(8, 20));
  EXPECT_EQ(blobs.size(), blobs.text().size());
}

}  // namespace
}  // namespace qkv::cli
