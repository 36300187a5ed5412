#include "qkv/see_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <nlohmann/json.hpp>

#include "io/test_files.h"
#include "qkv/error.h"
#include "qkv/layer_of_file.h"

namespace qkv::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Page : public ::testing::Test {
 protected:
  void put(const std::string& name, std::vector<int64_t> shape, unsigned seed) {
    Array a(DType::kFloat32, std::move(shape));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    auto* x = static_cast<float*>(a.data());
    for (int64_t n = 0; n < a.size(); ++n) x[n] = normal(random);
    arrays_.push_back(std::move(a));
    tensors_.push_back({name, arrays_.back().view()});
  }
  /// Turns what was put last into rows of `keys` weights that sum to less than 1.
  void make_weights(int64_t keys) {
    auto* w = static_cast<float*>(arrays_.back().data());
    for (int64_t n = 0; n < arrays_.back().size(); ++n)
      w[n] = std::min(1.0F, std::abs(w[n])) / static_cast<float>(keys);
  }
  /// A file of what was put, with q and k of these sizes.
  std::string file(int64_t heads, int64_t queries, int64_t keys, int64_t dim) {
    put("q", {1, heads, queries, dim}, 1);
    put("k", {1, heads, keys, dim}, 2);
    return write();
  }
  std::string write() {
    write_npz(folder_ / "a.npz", tensors_);
    return folder_ / "a.npz";
  }
  std::string page(const std::string& path) {
    options_.tokens.tensors = path;
    const Dump dump(path);
    std::vector<Layer> layers;
    for (int number : dump.layers())
      layers.push_back(layer_of(dump, attention_, number, WeightsFrom::kQueriesAndKeys, progress_));
    return page_of(options_, layers);
  }
  static json facts(const std::string& page) {
    const std::string begin = "<script type=\"application/json\" id=\"facts\">";
    const size_t first = page.find(begin) + begin.size();
    return json::parse(page.substr(first, page.find("</script>", first) - first));
  }
  json cells(const std::string& path) { return facts(page(path))["layers"][0]["sequences"][0]["heads"][0]["cells"]; }

  io::ScratchFolder folder_;
  std::deque<Array> arrays_;
  std::vector<NamedTensor> tensors_;
  SeeOptions options_;
  AttentionOptions attention_;
  Progress progress_;
};

TEST_F(Page, IsOneFileThatAsksForNothing) {
  const std::string text = page(file(2, 5, 5, 4));
  EXPECT_THAT(
      text, AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'sha256-"), HasSubstr("style-src 'sha256-")));
  EXPECT_EQ(text.find("http://"), std::string::npos);
  EXPECT_EQ(text.find("https://"), std::string::npos);
  EXPECT_EQ(text.find("{{"), std::string::npos);
  EXPECT_EQ(facts(text)["layers"][0]["sequences"][0]["heads"].size(), 2U);
}

TEST_F(Page, HoldsShortSequencesAsHalvesOfEveryKindOfAttention) {
  const std::string path = file(1, 9, 9, 16);
  EXPECT_EQ(cells(path)["kind"], "weights");
  attention_.softcap = 3.0F;
  EXPECT_EQ(cells(path)["kind"], "weights");
}

TEST_F(Page, RecomputesLongPlainAttentionAndSaysHowExactly) {
  const std::string path = file(1, 700, 700, 8);
  attention_.causal = true;
  attention_.window = "40,0";
  const json c = cells(path);
  EXPECT_EQ(c["kind"], "scores");
  EXPECT_LT(c["error"].get<double>(), 2e-3);
  EXPECT_GT(c["error"].get<double>(), 0);
  EXPECT_EQ(c["rows_compared"], 16);
}

TEST_F(Page, TakesTilesOfCodesForLongAttentionThatIsNotPlain) {
  const std::string path = file(1, 300, 300, 8);
  attention_.softcap = 3.0F;
  const json c = cells(path);
  EXPECT_EQ(c["kind"], "codes");
  EXPECT_GT(c["high"].get<double>(), 0);
}

TEST_F(Page, KnowsNoMasksOfWeightsFromAFile) {
  put("weights", {1, 1, 20, 20}, 1);
  make_weights(20);
  EXPECT_TRUE(cells(write())["masks_unknown"].get<bool>());
}

TEST_F(Page, KeysOfAGroupAreInThePageOnce) {
  put("q", {1, 4, 700, 8}, 1);
  put("k", {1, 2, 700, 8}, 2);
  const json heads = facts(page(write()))["layers"][0]["sequences"][0]["heads"];
  EXPECT_EQ(heads[0]["cells"]["k"], heads[1]["cells"]["k"]);
  EXPECT_NE(heads[1]["cells"]["k"], heads[2]["cells"]["k"]);
  EXPECT_NE(heads[0]["cells"]["q"], heads[1]["cells"]["q"]);
}

TEST_F(Page, ThatWouldBeTooLargeIsRefusedWithItsSizeAndAWayOut) {
  for (int n = 0; n < 3; ++n) {
    put("layer" + std::to_string(n) + ".q", {1, 8, 1024, 128}, 1);
    put("layer" + std::to_string(n) + ".k", {1, 8, 1024, 128}, 2);
  }
  const std::string path = write();
  EXPECT_THAT(io::message_of<OptionError>([&] { page(path); }),
              AllOf(HasSubstr("MB and may have 20"), HasSubstr("3 layers"), HasSubstr("8 heads"),
                    HasSubstr("1024 queries"), HasSubstr("--layer"), HasSubstr("--head")));
  options_.typed = false;
  EXPECT_THAT(io::message_of<OptionError>([&] { page(path); }), HasSubstr("one layer with layer, one head with head"));
}

TEST_F(Page, FallsBackToCodesWhereHalvesWouldBeTooLarge) {
  put("weights", {1, 200, 200, 200}, 1);
  make_weights(200);
  const std::string text = page(write());
  EXPECT_EQ(facts(text)["layers"][0]["sequences"][0]["heads"][7]["cells"]["kind"], "codes");
  EXPECT_LT(static_cast<double>(text.size()), kLargestPage);
}

TEST_F(Page, OnlyTheChosenHeadAndBatchEntry) {
  put("q", {3, 4, 5, 2}, 1);
  put("k", {3, 4, 5, 2}, 2);
  options_.head = 2;
  options_.one_batch = true;
  options_.batch = 1;
  const json sequences = facts(page(write()))["layers"][0]["sequences"];
  ASSERT_EQ(sequences.size(), 1U);
  EXPECT_EQ(sequences[0]["batch"], 1);
  ASSERT_EQ(sequences[0]["heads"].size(), 1U);
  EXPECT_EQ(sequences[0]["heads"][0]["head"], 2);
}

TEST_F(Page, BeginsWithTheStrongestKeyOfAChosenQueryAndTheChosenScale) {
  put("weights", {1, 2, 3}, 1);
  const float weights[] = {0.5F, 0.25F, 0.25F, 0.25F, 0.125F, 0.5F};
  std::copy(std::begin(weights), std::end(weights), static_cast<float*>(arrays_.back().data()));
  const std::string path = write();
  EXPECT_EQ(facts(page(path))["view"], "");
  options_.scale = Scale::kLift;
  EXPECT_EQ(facts(page(path))["view"], "scale=lift");
  options_.row = 1;
  EXPECT_EQ(facts(page(path))["view"], "scale=lift&batch=0&pin=1,2");
}

TEST_F(Page, ATokenThatLooksLikeMarkupIsTextInIt) {
  io::put_bytes(folder_ / "a.json", R"({"tokens": ["</script><b>", "<!--", "\u2028"]})");
  const std::string text = page(file(1, 3, 3, 2));
  EXPECT_EQ(text.find("</script><b>"), std::string::npos);
  EXPECT_EQ(facts(text)["tokens"][0][0], "</script><b>");
}

TEST_F(Page, WithoutAHeadIsRefused) {
  put("q", {0, 2, 3, 4}, 1);
  put("k", {0, 2, 3, 4}, 2);
  const std::string path = write();
  EXPECT_THAT(io::message_of<OptionError>([&] { page(path); }), HasSubstr("nothing to draw"));
}

TEST_F(Page, AppearsWholeOrNotAtAll) {
  const std::string text = page(file(1, 3, 3, 2));
  EXPECT_THAT(io::message_of<FileError>([&] { write_page(folder_ / "none/page.html", text); }),
              HasSubstr("cannot be written"));
  write_page(folder_ / "page.html", text);
  EXPECT_EQ(io::bytes_of(folder_ / "page.html"), text);
  EXPECT_EQ(folder_.files().size(), 2U) << "the file of tensors and the page, nothing temporary";
}

TEST_F(Page, ARangeOfKeysPerRowIsWhatThePatternsSee) {
  Problem p;
  put("q", {1, 1, 4, 2}, 1);
  put("k", {1, 1, 6, 2}, 2);
  p.inputs.query = arrays_[0].view();
  p.inputs.key = p.inputs.value = arrays_[1].view();
  p.sizes = {1, 1, 1, 4, 6, 2, 2};
  p.attention.visible(Causal{}).visible(Window{2, -1}).align(Align::kBottomRight);
  EXPECT_TRUE(is_plain(p));
  const std::vector<std::pair<int, int>> want = {{0, 3}, {1, 4}, {2, 5}, {3, 6}};
  for (int64_t i = 0; i < 4; ++i) {
    const KeyRange r = range_of(p, {0, 4, 6}, i);
    EXPECT_EQ(std::pair(r.first, r.last),
              std::pair(want[static_cast<size_t>(i)].first, want[static_cast<size_t>(i)].second))
        << i;
  }
  p.attention.score(SoftCap{3});
  EXPECT_FALSE(is_plain(p));
}

}  // namespace
}  // namespace qkv::cli
