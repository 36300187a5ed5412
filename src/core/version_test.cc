#include "qkv/version.h"

#include <gtest/gtest.h>

#include <string>

TEST(Version, IsThatOfTheHeaders) { EXPECT_STREQ(qkv::version(), QKV_VERSION_STRING); }

TEST(Version, StringIsMadeOfTheNumbers) {
  EXPECT_EQ(QKV_VERSION_STRING, std::to_string(QKV_VERSION_MAJOR) + "." + std::to_string(QKV_VERSION_MINOR) + "." +
                                    std::to_string(QKV_VERSION_PATCH));
}
