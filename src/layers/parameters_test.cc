#include "qkv/parameters.h"

#include <gmock/gmock.h>

#include <cstring>

#include "io/test_files.h"
#include "qkv/init.h"
#include "qkv/models.h"

namespace qkv::nn {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

template <class Layer> void fill(Layer& layer, uint64_t seed) {
  uint32_t tensor = 0;
  for (const auto& [name, p] : parameters_of(layer)) {
    fill_uniform(p->value.view(), 0.5, {.seed = seed, .tensor = tensor++});
    p->changed();
  }
}

template <class Layer> void expect_same_bits(Layer& a, Layer& b) {
  const auto of_a = parameters_of(a), of_b = parameters_of(b);
  ASSERT_EQ(of_a.size(), of_b.size());
  for (size_t n = 0; n < of_a.size(); ++n) {
    const Array &x = of_a[n].parameter->value, &y = of_b[n].parameter->value;
    EXPECT_EQ(of_a[n].name, of_b[n].name);
    ASSERT_EQ(x.shape(), y.shape()) << of_a[n].name;
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.bytes()), 0) << of_a[n].name;
  }
}

TEST(Parameters, ComeBackToTheLastBit) {
  const io::ScratchFolder folder;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const LanguageModel::Options options{
        .vocabulary = 7, .context = 3, .width = 8, .layers = 2, .heads = 2, .has_bias = true, .dtype = dtype};
    LanguageModel saved(options), loaded(options);
    fill(saved, 1);
    save_parameters(folder / "m.safetensors", saved, "model.", {{"step", "3"}});
    const Safetensors file(folder / "m.safetensors");
    load_parameters(loaded, file, {.prefix = "model."});
    expect_same_bits(saved, loaded);
    EXPECT_EQ(file.metadata().at("step"), "3");
  }
}

TEST(Parameters, ProductsSeeWhatWasLoaded) {
  const io::ScratchFolder folder;
  Linear saved({.in = 3, .out = 2}), loaded({.in = 3, .out = 2});
  fill(saved, 1), fill(loaded, 2);
  save_parameters(folder / "l.safetensors", saved);
  const float x[] = {1, 2, 3};
  Tape tape({.training = false});
  const Variable input = tape.constant(View<const float>(x, {1, 3}));
  loaded(tape, input);  // packs its weights
  load_parameters(loaded, Safetensors(folder / "l.safetensors"));
  EXPECT_EQ(std::memcmp(saved(tape, input).value().data, loaded(tape, input).value().data, 2 * sizeof(float)), 0);
}

TEST(Parameters, NarrowerNumbersAreWidened) {
  const io::ScratchFolder folder;
  const bfloat16 weight[] = {bfloat16(0.5F), bfloat16(-3.0F)};
  const float bias[] = {0.1F};
  const NamedTensor tensors[] = {{"weight", View<const bfloat16>(weight, {1, 2})},
                                 {"bias", View<const float>(bias, {1})}};
  write_safetensors(folder / "l.safetensors", tensors);
  Linear layer({.in = 2, .out = 1, .dtype = DType::kFloat64});
  load_parameters(layer, Safetensors(folder / "l.safetensors"));
  const auto* w = static_cast<const double*>(layer.weight.value.data());
  EXPECT_EQ(w[0], 0.5);
  EXPECT_EQ(w[1], -3);
  EXPECT_EQ(*static_cast<const double*>(layer.bias->value.data()), double(0.1F));
}

TEST(Parameters, OthersAreNamedAndNothingIsWritten) {
  const io::ScratchFolder folder;
  const std::string path = folder / "l.safetensors";
  const double numbers[6] = {1, 2, 3, 4, 5, 6};
  const int32_t whole[2] = {1, 2};
  Linear layer({.in = 3, .out = 2}), untouched({.in = 3, .out = 2});
  fill(layer, 1), fill(untouched, 1);
  const auto load = [&](const std::vector<NamedTensor>& tensors, const LoadOptions& options) {
    write_safetensors(path, tensors);
    load_parameters(layer, Safetensors(path), options);
  };
  const auto refusal = [&]<class E>(E*, const std::vector<NamedTensor>& tensors, const LoadOptions& options = {}) {
    const std::string message = message_of<E>([&] { load(tensors, options); });
    expect_same_bits(layer, untouched);
    return message;
  };
  const View<const void> f64 = View<const double>(numbers, {2, 3}), turned = View<const double>(numbers, {3, 2});
  const View<const void> integers = View<const int32_t>(whole, {2}), f32 = layer.weight.value.view();
  OptionError* const names = nullptr;
  EXPECT_THAT(refusal(names, {{"weight", f32}, {"gain", integers}}),
              HasSubstr("the file lacks bias; it has, without a parameter, gain"));
  EXPECT_THAT(refusal(names, {{"a.weight", f32}}, {.prefix = "b."}),
              AllOf(HasSubstr("lacks b.weight, b.bias"), HasSubstr("a parameter, none"), HasSubstr("(now \"b.\")")));
  EXPECT_THAT(refusal(static_cast<ShapeError*>(nullptr), {{"weight", turned}, {"bias", integers}}),
              HasSubstr("weight is {2, 3}, and the file's tensor {3, 2}"));
  EXPECT_THAT(refusal(static_cast<DtypeError*>(nullptr), {{"weight", f64}, {"bias", integers}}),
              HasSubstr("weight is float32, and the file's tensor float64"));
  EXPECT_THAT(refusal(static_cast<DtypeError*>(nullptr), {{"weight", f32}, {"bias", integers}}),
              HasSubstr("bias is float32, and the file's tensor int32"));
}

TEST(Parameters, TensorsOfOthersMayBeIgnored) {
  const io::ScratchFolder folder;
  Linear saved({.in = 2, .out = 2}), loaded({.in = 2, .out = 2});
  fill(saved, 1);
  auto tensors = tensors_of(parameters_of(saved), "linear1.");
  tensors.push_back({"linear1.scale", saved.bias->value.view()});
  tensors.push_back({"linear2.weight", saved.weight.value.view()});  // another prefix: never looked at
  write_safetensors(folder / "l.safetensors", tensors);
  const Safetensors file(folder / "l.safetensors");
  EXPECT_THROW(load_parameters(loaded, file, {.prefix = "linear1."}), OptionError);
  load_parameters(loaded, file, {.prefix = "linear1.", .unexpected = Unexpected::kIgnore});
  expect_same_bits(saved, loaded);
}

TEST(Parameters, LongListsOfNamesAreCut) {
  const io::ScratchFolder folder;
  LanguageModel model({.vocabulary = 3, .context = 2, .width = 4, .layers = 3, .heads = 1});
  write_safetensors(folder / "empty.safetensors", {});
  const std::string message =
      message_of<OptionError>([&] { load_parameters(model, Safetensors(folder / "empty.safetensors")); });
  EXPECT_THAT(message, AllOf(HasSubstr("lacks token_embedding.weight, position_embedding.weight"), HasSubstr(" more")));
}

}  // namespace
}  // namespace qkv::nn
