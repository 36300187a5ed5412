#include "qkv/dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/test_files.h"
#include "qkv/error.h"

namespace qkv::cli {
namespace {

using io::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DumpTest : public ::testing::Test {
 protected:
  /// An .npz whose tensor n is {1, 1} with the number n.
  std::string npz(const std::vector<std::string>& names) const {
    std::vector<float> values;
    for (size_t n = 0; n < names.size(); ++n) values.push_back(static_cast<float>(n));
    std::vector<NamedTensor> tensors;
    for (size_t n = 0; n < names.size(); ++n) tensors.push_back({names[n], View<const float>(&values[n], {1, 1})});
    write_npz(folder_ / "x.npz", tensors);
    return folder_ / "x.npz";
  }
  /// Which tensor of the file stands for `name` of a layer; -1: none.
  static int which(const Dump& dump, int layer, const std::string& name) {
    const auto found = dump.find(layer, name);
    EXPECT_EQ(dump.has(layer, name), found.has_value());
    return found ? static_cast<int>(found->view().as<const float>()(0)) : -1;
  }
  io::ScratchFolder folder_;
};

TEST_F(DumpTest, NamesOfTheFormatWinAndALayerOverAll) {
  const Dump dump(npz({"q", "layer1.q", "query", "layers.1.self_attn.q", "layers.1.self_attn.k", "attn.k"}));
  EXPECT_THAT(dump.layers(), ElementsAre(1));
  EXPECT_EQ(which(dump, 1, "q"), 1);
  EXPECT_EQ(which(dump, 0, "q"), 0);
  EXPECT_EQ(which(dump, 1, "k"), 4);
  EXPECT_EQ(which(dump, 0, "k"), 5);
  EXPECT_EQ(which(dump, 1, "v"), -1);
  EXPECT_EQ(dump.other_name(1, "q"), std::nullopt);
  EXPECT_EQ(dump.other_name(1, "k"), "layers.1.self_attn.k");
}

TEST_F(DumpTest, LayersComeFromOtherNamesWhereTheFormatSaysNone) {
  EXPECT_THAT(Dump(npz({"h.4.attn.query", "h.4.attn.key", "h.0.attn.query", "scale"})).layers(), ElementsAre(0, 4));
  EXPECT_THAT(Dump(npz({"q", "k", "layers.3.self_attn.q_proj.weight"})).layers(), ElementsAre(-1));
  EXPECT_THAT(Dump(npz({"query", "key"})).layers(), ElementsAre(-1));
}

TEST_F(DumpTest, SeveralThatFitAreRefusedWithAllOfThem) {
  const Dump dump(npz({"encoder.q", "decoder.q", "k", "layer3.v", "layer03.v"}));
  EXPECT_THAT(message_of<OptionError>([&] { dump.find(-1, "q"); }),
              AllOf(HasSubstr("q can be each of encoder.q, decoder.q"), HasSubstr("name the one that is meant q")));
  EXPECT_THAT(message_of<OptionError>([&] { dump.has(3, "v"); }),
              HasSubstr("layer3.v can be each of layer3.v, layer03.v"));
  EXPECT_EQ(which(dump, -1, "k"), 2);
}

TEST_F(DumpTest, ASafetensorsIsReadLikeAnNpz) {
  io::put_bytes(
      folder_ / "x.safetensors",
      io::safetensors_bytes(R"({"layer2.q":{"dtype":"BF16","shape":[1,1],"data_offsets":[0,2]}})", "\x80\x3f"));
  const Dump dump(folder_ / "x.safetensors");
  EXPECT_THAT(dump.layers(), ElementsAre(2));
  const auto q = dump.find(2, "q");
  EXPECT_EQ(q->dtype(), DType::kBFloat16);
  EXPECT_EQ(static_cast<float>(q->view().as<const bfloat16>()(0)), 1.0F);
  EXPECT_EQ(read_tensor(folder_ / "x.safetensors:layer2.q").dtype(), DType::kBFloat16);
  EXPECT_EQ(read_tensor(folder_ / "x.safetensors").size(), 1);
}

TEST_F(DumpTest, ABfloat16ThatTheSidecarNamesComesBack) {
  const std::string path = npz({"q", "k"});
  io::put_bytes(folder_ / "x.json", R"({"bfloat16": ["k"]})");
  const Dump dump(path);
  EXPECT_EQ(dump.find(-1, "q")->dtype(), DType::kFloat32);
  const auto k = dump.find(-1, "k");
  EXPECT_EQ(k->dtype(), DType::kBFloat16);
  EXPECT_EQ(static_cast<float>(k->view().as<const bfloat16>()(0)), 1.0F);
}

TEST_F(DumpTest, AMaskThatMayMeanEitherIsRefused) {
  EXPECT_THROW(Dump(npz({"q", "k", "attention_mask"})).expect_clear_masks(), FileError);
  EXPECT_NO_THROW(Dump(npz({"q", "k", "keep_mask", "foo"})).expect_clear_masks());
}

TEST_F(DumpTest, NamesThatSayNothingAreTold) {
  const auto notes = Dump(npz({"q", "k", "attention_mask", "foo"})).notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr("attention_mask, foo"));
  EXPECT_THAT(Dump(npz({"q", "entropy", "layer1.received"})).notes(), IsEmpty());
}

TEST_F(DumpTest, FilesOfOthersAreToldHowToConvert) {
  io::put_bytes(folder_ / "model.pt", "PK\x03\x04");
  EXPECT_THAT(message_of<FileError>([&] { read_tensor(folder_ / "model.pt"); }), HasSubstr("torch.load("));
}

}  // namespace
}  // namespace qkv::cli
