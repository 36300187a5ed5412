#include "qkv/sidecar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/test_files.h"
#include "qkv/error.h"

namespace qkv::cli {
namespace {

using io::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SidecarTest : public ::testing::Test {
 protected:
  Sidecar read(const std::string& text) const {
    io::put_bytes(folder_ / "x.json", text);
    return read_sidecar(folder_ / "x.npz");
  }
  std::string refusal(const std::string& text) const {
    return message_of<FileError>([&] { read(text); });
  }
  io::ScratchFolder folder_;
};

TEST_F(SidecarTest, SaysScaleAttentionAndTypes) {
  const Sidecar s = read(R"({"scale": 0.5, "attention": "causal | softmax", "bfloat16": ["out"], "model": "m"})");
  EXPECT_EQ(s.scale, 0.5);
  EXPECT_EQ(s.attention, "causal | softmax");
  EXPECT_THAT(s.bfloat16, ElementsAre("out"));
}

TEST_F(SidecarTest, NothingAndTokensAloneAreFine) {
  EXPECT_EQ(read_sidecar(folder_ / "absent.npz").path, "");
  EXPECT_EQ(read_sidecar("").path, "");
  EXPECT_EQ(read(R"(["a", "b"])").text, "");
  EXPECT_EQ(read(R"({"scale": null, "attention": null})").scale, std::nullopt);
}

TEST_F(SidecarTest, RefusesWhatItCannotMean) {
  EXPECT_THAT(refusal("{"), HasSubstr("no JSON"));
  EXPECT_THAT(refusal(R"({"scale": "big"})"), HasSubstr("expected a finite number"));
  EXPECT_THAT(refusal(R"({"scale": 1e999})"), HasSubstr("x.json"));
  EXPECT_THAT(refusal(R"({"attention": 3})"), HasSubstr("expected a text"));
  EXPECT_THAT(refusal(R"({"bfloat16": [1]})"), HasSubstr("a list of names"));
  EXPECT_THAT(refusal(R"({"bfloat16": "q"})"), HasSubstr("a list of names"));
}

TEST_F(SidecarTest, WhatOthersWroteStays) {
  Sidecar results;
  results.attention = "softmax";
  const std::string text =
      sidecar_text(read(R"({"model": "m", "scale": 3, "tokens": [["a"]], "bfloat16": ["q"]})"), results);
  const Sidecar back = read(text);
  EXPECT_THAT(text, HasSubstr("\"model\": \"m\""));
  EXPECT_THAT(text, HasSubstr("\"tokens\""));
  EXPECT_EQ(back.scale, std::nullopt);
  EXPECT_TRUE(back.bfloat16.empty());
  EXPECT_EQ(back.attention, "softmax");
}

TEST_F(SidecarTest, DoesNotReplaceSomethingElse) {
  const std::string tensors = folder_ / "x.npz";
  EXPECT_EQ(place_of_sidecar(tensors, {}), SidecarPlace::kFree);
  for (const char* other : {"[1]", "{\"name\": \"package\"}", "no JSON", R"({"scale": 3, "hidden_size": 64})"}) {
    io::put_bytes(folder_ / "x.json", other);
    EXPECT_THROW(expect_no_other_json(tensors, {}), OptionError) << other;
  }
  io::put_bytes(folder_ / "x.json", R"({"tokens": [], "scheme": "metaspace"})");
  EXPECT_NO_THROW(expect_no_other_json(tensors, {}));
  EXPECT_EQ(place_of_sidecar(tensors, {}), SidecarPlace::kSidecar);
}

TEST_F(SidecarTest, ReplacesKeysOfOthersThatTheInputBringsAgain) {
  const std::string tensors = folder_ / "x.npz", text = R"({"model": "m", "scale": 3})";
  const Sidecar input = read(text);
  io::put_bytes(folder_ / "x.json", text);
  EXPECT_EQ(place_of_sidecar(tensors, input), SidecarPlace::kSidecar);
  EXPECT_EQ(place_of_sidecar(tensors, {}), SidecarPlace::kOther);
}

}  // namespace
}  // namespace qkv::cli
