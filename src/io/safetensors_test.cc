#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "io/test_files.h"
#include "qkv/error.h"
#include "qkv/io.h"

namespace qkv {
namespace {

using io::message_of;
using io::put_bytes;
using io::safetensors_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string one_tensor(const std::string& type, const std::string& shape, int begin, int end) {
  return R"({"t":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":[)" + std::to_string(begin) + "," +
         std::to_string(end) + "]}}";
}

class SafetensorsTest : public ::testing::Test {
 protected:
  /// Padded with spaces as writers do, so that data begin at a multiple of 8.
  std::string put(const std::string& header, const std::string& data) const {
    put_bytes(path_, safetensors_bytes(header + std::string((8 - header.size() % 8) % 8, ' '), data));
    return path_;
  }
  /// Why a file with this header and so many bytes of zeros is refused.
  std::string refusal(const std::string& header, size_t data) const {
    put(header, std::string(data, '\0'));
    return message_of<FileError>([&] { Safetensors{path_}; });
  }
  io::ScratchFolder folder_;
  std::string path_ = folder_ / "x.safetensors";
};

TEST_F(SafetensorsTest, EveryTypeArrivesUnchanged) {
  struct Example {
    const char* type;
    DType dtype;
  };
  for (const Example& e : {Example{"F32", DType::kFloat32},
                           {"F64", DType::kFloat64},
                           {"F16", DType::kFloat16},
                           {"BF16", DType::kBFloat16},
                           {"I8", DType::kInt8},
                           {"I16", DType::kInt16},
                           {"I32", DType::kInt32},
                           {"I64", DType::kInt64},
                           {"U8", DType::kUInt8},
                           {"U16", DType::kUInt16},
                           {"U32", DType::kUInt32},
                           {"U64", DType::kUInt64}}) {
    std::string data;
    for (size_t n = 0; n < 6 * size_of(e.dtype); ++n) data += static_cast<char>(n * 11);
    put(one_tensor(e.type, "[2,3]", 0, static_cast<int>(data.size())), data);
    const Safetensors file(path_);
    const Array a = file.read("t");
    EXPECT_EQ(a.dtype(), e.dtype);
    EXPECT_THAT(a.shape(), ElementsAre(2, 3));
    EXPECT_EQ(std::memcmp(a.data(), data.data(), data.size()), 0) << e.type;
    const View<const void> v = file.view("t");
    EXPECT_EQ(v.dtype, e.dtype);
    EXPECT_EQ(std::memcmp(v.data, data.data(), data.size()), 0) << e.type;
  }
}

TEST_F(SafetensorsTest, ABoolIsZeroOrOneWhateverTheByteWas) {
  put(one_tensor("BOOL", "[3]", 0, 3), std::string("\x00\x01\x7f", 3));
  const Safetensors file(path_);
  const Array a = file.read("t");
  EXPECT_EQ(std::memcmp(a.data(), "\x00\x01\x01", 3), 0);
  EXPECT_FALSE(file.view("t"));
}

TEST_F(SafetensorsTest, NamesNeedNotBeInTheOrderOfTheData) {
  put(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"none":{"dtype":"F16","shape":[0,7],"data_offsets":[8,8]}}   )",
      std::string("\0\0\x80?\0\0\0@", 8));
  const Safetensors file(path_);
  EXPECT_THAT(file.names(), ElementsAre("a", "b", "none"));
  EXPECT_TRUE(file.contains("b"));
  EXPECT_FALSE(file.contains("__metadata__"));
  EXPECT_EQ(*static_cast<const float*>(file.read("a").data()), 1.0F);
  EXPECT_THAT(file.read("a").shape(), IsEmpty());
  EXPECT_EQ(file.view("b").as<const float>()(0), 2.0F);
  EXPECT_EQ(file.read("none").size(), 0);
}

TEST_F(SafetensorsTest, AViewIsGivenOnlyWhereTheBytesAreAligned) {
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  put(header, std::string("\x07\0\0\0@", 5));
  const Safetensors file(path_);
  EXPECT_FALSE(file.view("b"));
  EXPECT_EQ(*static_cast<const float*>(file.read("b").data()), 2.0F);
  EXPECT_EQ(file.view("a").as<const uint8_t>()(0), 7);
}

TEST_F(SafetensorsTest, AViewOutlivesAMove) {
  put(one_tensor("F32", "[1]", 0, 4), std::string("\0\0\0@", 4));
  Safetensors file(path_);
  const auto view = file.view("t").as<const float>();
  const Safetensors moved = std::move(file);
  EXPECT_EQ(view(0), 2.0F);
}

TEST_F(SafetensorsTest, TypesThatAreNotReadAreRefusedOnlyWhenTheirTensorIsAskedFor) {
  put(R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"F4","shape":[3,2],"data_offsets":[4,7]},)"
      R"("c":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}})",
      "abcdefg\x05");
  const Safetensors file(path_);
  EXPECT_EQ(*static_cast<const uint8_t*>(file.read("c").data()), 5);
  EXPECT_THAT(message_of<FileError>([&] { file.read("a"); }),
              HasSubstr("a in " + path_ + " has elements of type F8_E4M3"));
  EXPECT_THAT(message_of<FileError>([&] { file.view("b"); }), HasSubstr("F4"));
}

TEST_F(SafetensorsTest, RefusesExtentsThatDoNotFit) {
  EXPECT_THAT(refusal(one_tensor("F32", "[1000,1000]", 0, 4), 4), HasSubstr("does not fit the 4 bytes"));
  EXPECT_THAT(refusal(one_tensor("F32", "[1]", 8, 4), 8), HasSubstr("ends at byte 4 before it begins at 8"));
  EXPECT_THAT(refusal(one_tensor("F32", "[4]", 0, 16), 8), HasSubstr("claims bytes up to 16, but there are 8"));
  EXPECT_THAT(refusal(one_tensor("F32", "[1]", 0, 4), 12), HasSubstr("8 bytes after its last tensor"));
  EXPECT_THAT(refusal(one_tensor("F32", "[1]", 4, 8), 8), HasSubstr("after 4 that belong to no tensor"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                      4),
              HasSubstr("inside of another tensor"));
  EXPECT_THAT(refusal(one_tensor("F4", "[3]", 0, 1), 1), HasSubstr("does not fit the 1 bytes"));
}

TEST_F(SafetensorsTest, RefusesShapesWhoseProductLeaves64Bits) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775807,9223372036854775807]", "[4611686018427387904,8]"}) {
    for (const char* type : {"F32", "F4"})
      EXPECT_THAT(refusal(one_tensor(type, shape, 0, 0), 0), HasSubstr("does not fit")) << shape;
  }
  EXPECT_THAT(refusal(one_tensor("F32", "[2305843009213693952,2,0]", 0, 0), 0), HasSubstr("does not fit"));
  EXPECT_THAT(refusal(one_tensor("F32", "[9223372036854775808]", 0, 0), 0), HasSubstr("63 bits"));
}

TEST_F(SafetensorsTest, RefusesWhatIsNotOfTheFormat) {
  EXPECT_THAT(refusal(one_tensor("Q9", "[1]", 0, 4), 4), HasSubstr("elements of type 'Q9'"));
  EXPECT_THAT(refusal(one_tensor("F32", "[-1]", 0, 4), 4), HasSubstr("expected a size of at least 0"));
  EXPECT_THAT(refusal(one_tensor("F32", "[1.0]", 0, 4), 4), HasSubstr("no integer"));
  EXPECT_THAT(refusal(one_tensor("F32", "1", 0, 4), 4), HasSubstr("expected a list of sizes"));
  EXPECT_THAT(refusal(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4), HasSubstr("fewer than two"));
  EXPECT_THAT(refusal(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4), HasSubstr("more than two"));
  EXPECT_THAT(refusal(R"({"t":{"dtype":"F32","shape":[1]}})", 4), HasSubstr("needs dtype, shape and data_offsets"));
  EXPECT_THAT(refusal(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4), HasSubstr("got 'x'"));
  EXPECT_THAT(refusal(R"({"t":[]})", 0), HasSubstr("expected an object with dtype"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":{}}})", 0), HasSubstr("expected a text"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refusal("\xEF\xBB\xBF{}", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(refusal("{} {}", 0), HasSubstr("no JSON"));
  EXPECT_THAT(refusal(one_tensor("F32", "[1]", 0, 4) + std::string(3, '\0'), 4), HasSubstr("no JSON"));
  EXPECT_THAT(refusal(std::string("{}\0{", 4), 0), HasSubstr("no JSON"));
  EXPECT_THAT(refusal("{\"\xFF\":1}", 0), HasSubstr("no JSON"));
}

TEST_F(SafetensorsTest, RefusesAnythingTwice) {
  const std::string tensor = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(refusal(R"({"t":)" + tensor + R"(,"t":)" + tensor + "}", 4), HasSubstr("'t' appears twice"));
  EXPECT_THAT(refusal(R"({"t":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("a field appears twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":"b","a":"c"}})", 0), HasSubstr("__metadata__ appears twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("appears twice"));
}

TEST_F(SafetensorsTest, RefusesDepthAtTheFirstStep) {
  const std::string deep(10'000'000, '[');
  EXPECT_THAT(refusal(R"({"t":)" + deep, 0), HasSubstr("expected an object"));
  EXPECT_THAT(refusal(R"({"t":{"shape":[)" + deep, 0), HasSubstr("expected a size"));
}

TEST_F(SafetensorsTest, RefusesAHeaderThatClaimsMoreThanThereIs) {
  for (const std::string& bytes :
       {std::string(), std::string("\x02\0\0", 3), std::string("\0\0\0\0\0\0\1\0{}", 10),
        std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), std::string("\x03\0\0\0\0\0\0\0{}", 10)}) {
    put_bytes(path_, bytes);
    EXPECT_THROW(Safetensors{path_}, FileError) << bytes.size();
  }
  put_bytes(path_, std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10));  // 100,000,001: above the format's limit
  std::filesystem::resize_file(path_, 100'000'100);
  EXPECT_THAT(message_of<FileError>([&] { Safetensors{path_}; }), HasSubstr("claims a header of 100000001 bytes"));
}

TEST_F(SafetensorsTest, RefusesWhatIsNoRegularFile) {
  EXPECT_THAT(message_of<FileError>([&] { Safetensors{folder_ / "absent"}; }), HasSubstr("cannot open"));
  EXPECT_THAT(message_of<FileError>([&] { Safetensors{folder_ / ""}; }), HasSubstr("no regular file"));
  EXPECT_THROW(Safetensors{"/dev/null"}, FileError);
}

TEST_F(SafetensorsTest, AFileThatShrinksAfterItWasOpenedIsAnErrorAndNoCrash) {
  put(one_tensor("U8", "[100000]", 0, 100000), std::string(100000, 'x'));
  const Safetensors file(path_);
  std::filesystem::resize_file(path_, 5000);
  EXPECT_THAT(message_of<FileError>([&] { file.read("t"); }), HasSubstr("became shorter"));
}

TEST_F(SafetensorsTest, AMissingNameIsToldWhatThereIs) {
  put(one_tensor("F32", "[1]", 0, 4), std::string(4, '\0'));
  EXPECT_THAT(message_of<FileError>([&] { Safetensors(path_).read("q"); }), HasSubstr("no tensor 'q'; it has: t"));
}

// ---- writing ----

TEST_F(SafetensorsTest, WhatIsWrittenIsReadAgainWithItsTexts) {
  const float a[] = {1, 2, 3, 4, 5, 6};
  const bfloat16 b[] = {bfloat16(1.5F), bfloat16(-2.0F)};
  const bool c[] = {true, false};
  const double none[] = {0};
  const NamedTensor tensors[] = {{"layers.0.\xc3\xa9\"", View<const float>(a, {2, 3})},
                                 {"turned", View<const float>(a, {3, 2}, {1, 3})},
                                 {"b", View<const bfloat16>(b, {2})},
                                 {"c", View<const bool>(c, {2, 1})},
                                 {"none", View<const double>(none, {0, 3})}};
  write_safetensors(path_, tensors, {{"config", "{\"dim\": 3}\n"}, {"format", "pt"}});
  const Safetensors file(path_);
  EXPECT_THAT(file.names(), testing::UnorderedElementsAre("layers.0.\xc3\xa9\"", "turned", "b", "c", "none"));
  EXPECT_EQ(file.metadata().at("config"), "{\"dim\": 3}\n");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.view("layers.0.\xc3\xa9\"").as<const float>()(1, 2), 6);
  EXPECT_EQ(file.view("turned").as<const float>()(1, 1), 5);
  EXPECT_EQ(float(file.view("b").as<const bfloat16>()(1)), -2);
  EXPECT_TRUE(static_cast<const bool*>(file.read("c").data())[0]);
  EXPECT_THAT(file.read("none").shape(), ElementsAre(0, 3));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.view("turned").data) % 8, 0U);
}

TEST_F(SafetensorsTest, AFileWithoutTensorsOrTextsIsAFile) {
  write_safetensors(path_, {});
  EXPECT_THAT(Safetensors(path_).names(), IsEmpty());
  EXPECT_TRUE(Safetensors(path_).metadata().empty());
}

TEST_F(SafetensorsTest, RefusesNamesThatCannotBeWrittenAndLeavesWhatWasThere) {
  const float one[] = {1};
  const View<const float> v(one, {1});
  const NamedTensor kept[] = {{"kept", v}};
  write_safetensors(path_, kept);
  const auto refused = [&](std::vector<NamedTensor> tensors,
                           std::map<std::string, std::string, std::less<>> texts = {}) {
    try {
      write_safetensors(path_, tensors, texts);
      return std::string("accepted");
    } catch (const ArgumentError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_THAT(refused({{"", v}}), HasSubstr("write_safetensors: a tensor has no name"));
  EXPECT_THAT(refused({{"a", v}, {"a", v}}), HasSubstr("the name 'a' is given twice"));
  EXPECT_THAT(refused({{"a", {}}}), HasSubstr("tensor 'a' is absent"));
  EXPECT_THAT(refused({{"__metadata__", v}}), HasSubstr("keeps the name __metadata__"));
  EXPECT_THAT(refused({{"a\xff", v}}), HasSubstr("no UTF-8"));
  EXPECT_THAT(refused({{"a", v}}, {{"k", "\xff"}}), HasSubstr("no UTF-8"));
  EXPECT_THROW(write_safetensors("/nowhere/at/all.safetensors", kept), FileError);
  EXPECT_TRUE(Safetensors(path_).contains("kept"));
}

}  // namespace
}  // namespace qkv
