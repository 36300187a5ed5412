#include "qkv/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/test_files.h"
#include "qkv/error.h"

namespace qkv::cli {
namespace {

using io::message_of;
using io::put_bytes;
using io::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Tokens, ComeFromAListOrJson) {
  EXPECT_THAT(find_tokens({"a,b,c", "", ""}, 0, 3, 3).queries, ElementsAre("a", "b", "c"));
  EXPECT_THAT(find_tokens({R"(["a", ","])", "", ""}, 0, 2, 2).keys, ElementsAre("a", ","));
  const Tokens crossed = find_tokens({"a,b", "x,y,z", ""}, 0, 2, 3);
  EXPECT_THAT(crossed.queries, ElementsAre("a", "b"));
  EXPECT_THAT(crossed.keys, ElementsAre("x", "y", "z"));
  EXPECT_THAT(find_tokens({"a,b", "", ""}, 0, 2, 3).keys, IsEmpty());
}

TEST(Tokens, AreFoundBesideTheTensors) {
  ScratchFolder folder;
  put_bytes(folder / "model.json", R"({"tokens": [["a", "b"], ["c", "\u001b[31m"]]})");
  EXPECT_THAT(find_tokens({"", "", folder / "model.npz"}, 0, 2, 2).queries, ElementsAre("a", "b"));
  EXPECT_THAT(find_tokens({"", "", folder / "model.npz"}, 1, 2, 2).keys, ElementsAre("c", "\\x1b[31m"));
  EXPECT_THAT(find_tokens({"", "", folder / "other.npz"}, 0, 2, 2).queries, IsEmpty());
}

TEST(Tokens, WhatLiesBesideAndDoesNotFitIsSaidAndNotUsed) {
  ScratchFolder folder;
  put_bytes(folder / "model.json", R"({"tokens": ["a", "b"]})");
  const Tokens tokens = find_tokens({"", "", folder / "model.npz"}, 0, 3, 3);
  EXPECT_THAT(tokens.queries, IsEmpty());
  EXPECT_THAT(tokens.note, HasSubstr("has 2 tokens, but there are 3 queries and 3 keys"));
}

TEST(Tokens, AreShownAsTextWhereTheSchemeIsSaid) {
  ScratchFolder folder;
  put_bytes(folder / "x.json", R"({"tokens": ["Ġthe", "Ċ"], "scheme": "byte_level"})");
  EXPECT_THAT(find_tokens({"", "", folder / "x.npz"}, 0, 2, 2).queries, ElementsAre("␣the", "\\n"));
  put_bytes(folder / "x.json", R"({"tokens": ["▁the", "<0x41>"], "scheme": "metaspace"})");
  EXPECT_THAT(find_tokens({folder / "x.json", "", ""}, 0, 2, 2).queries, ElementsAre("␣the", "A"));
  put_bytes(folder / "x.json", R"({"tokens": ["a"], "scheme": "other"})");
  EXPECT_THROW(find_tokens({"", "", folder / "x.npz"}, 0, 1, 1), FileError);
  put_bytes(folder / "x.json", R"({"scale": 2})");
  EXPECT_THAT(find_tokens({"", "", folder / "x.npz"}, 0, 1, 1).queries, IsEmpty());
}

TEST(Tokens, AnOptionThatDoesNotFitIsRefused) {
  EXPECT_THAT(message_of<OptionError>([] {
                find_tokens({"a,b", "", ""}, 0, 3, 3);
              }),
              HasSubstr("expected 3 tokens, one for each query, got 2"));
  EXPECT_THAT(message_of<OptionError>([] {
                find_tokens({"", "a", ""}, 0, 3, 2);
              }),
              HasSubstr("one for each key, got 1"));
}

TEST(Tokens, OfAProgramAreOneListForAllBatchEntriesOrOneEach) {
  TokenSource source;
  source.key_lists = {{"a", " b"}};
  EXPECT_THAT(find_tokens(source, 7, 3, 2).keys, ElementsAre("a", "␣b"));
  EXPECT_THAT(find_tokens(source, 7, 3, 2).queries, IsEmpty());
  source.query_lists = {{"x"}, {"y"}};
  EXPECT_THAT(find_tokens(source, 1, 1, 2).queries, ElementsAre("y"));
  EXPECT_THAT(message_of<OptionError>([&] { find_tokens(source, 0, 1, 3); }),
              HasSubstr("tokens: expected 3 tokens, one for each key, got 2"));
  EXPECT_THAT(message_of<OptionError>([&] { find_tokens(source, 0, 4, 2); }),
              HasSubstr("query_tokens: expected 4 tokens, one for each query, got 1"));
}

TEST(Tokens, WhatIsNoListOfTokensIsRefused) {
  ScratchFolder folder;
  for (const char* text : {"", "{", "3", "{\"tokens\": 3}", "{\"tokens\": [1, 2]}", "[[1]]", "[{}]"}) {
    put_bytes(folder / "x.json", text);
    EXPECT_THROW(find_tokens({folder / "x.json", "", ""}, 0, 1, 1), FileError) << text;
  }
  EXPECT_THROW(find_tokens({"/nowhere.json", "", ""}, 0, 1, 1), FileError);
}

}  // namespace
}  // namespace qkv::cli
