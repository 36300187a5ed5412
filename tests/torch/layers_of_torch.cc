// Runs a layer forward and backward as a file says, for tests that compare with PyTorch.
//   layers_of_torch IN.safetensors OUT.safetensors
// In: state.NAME of every parameter (or "seed" in the metadata: random ones), x, perhaps key, value, memory, masks, dy, and
// metadata that describe the layer. Out: y, perhaps weights, dx, dkey, dvalue, dmemory, and state.NAME, gradient.NAME of every parameter.
#include <cstdio>
#include <deque>
#include <exception>
#include <memory>

#include "qkv/init.h"
#include "qkv/layers.h"
#include "qkv/parameters.h"
#include "settings.h"

namespace qkv::torch_tests {
namespace {

using nn::MultiHeadAttention;
using nn::Norm;
using nn::Tape;
using nn::TransformerLayer;
using nn::Variable;

MultiHeadAttention::Options attention_of(const Settings& s, DType dtype, const std::string& formula) {
  const bool has_bias = s.is_on("bias");
  return {.width = s.whole("width"),
          .heads = s.whole("heads"),
          .key_width = s.whole("key_width"),
          .value_width = s.whole("value_width"),
          .has_query_bias = has_bias,
          .has_key_bias = has_bias,
          .has_value_bias = has_bias,
          .has_out_bias = has_bias,
          .formula = Attention::parse(formula),
          .dtype = dtype};
}

TransformerLayer::Options layer_of(const Settings& s, DType dtype) {
  TransformerLayer::Options o{
      .self = attention_of(s, dtype, s.text("formula")),
      .hidden = s.whole("hidden"),
      .activation = s.text("activation") == "relu" ? nn::Activation::kRelu : nn::Activation::kGelu,
      .has_bias = s.is_on("bias"),
      .norm_place = s.is_on("norm_first") ? TransformerLayer::NormPlace::kBefore : TransformerLayer::NormPlace::kAfter,
      .norm_has_bias = s.is_on("bias"),
      .norm_epsilon = s.number("epsilon")};
  if (s.text("kind") == "decoder") o.cross = attention_of(s, dtype, s.text("cross_formula"));
  return o;
}

/// An attention, a layer, or a stack of layers with a last norm, under the names of torch.nn.TransformerEncoder.
class Layer {
 public:
  Layer(const Settings& s, DType dtype) {
    if (s.text("kind") == "attention") {
      attention_ = std::make_unique<MultiHeadAttention>(attention_of(s, dtype, s.text("formula")));
      return;
    }
    is_stack_ = s.whole("layers") > 0;
    const int64_t layers = is_stack_ ? s.whole("layers") : 1;
    for (int64_t n = 0; n < layers; ++n) layers_.emplace_back(layer_of(s, dtype));
    if (s.is_on("last_norm"))
      norm_ =
          std::make_unique<Norm>(Norm::Options{.dim = s.whole("width"), .has_bias = s.is_on("bias"), .dtype = dtype});
  }

  void visit(const std::string& prefix, const nn::Visitor& f) {
    if (attention_) attention_->visit(prefix, f);
    for (size_t n = 0; n < layers_.size(); ++n)
      layers_[n].visit(is_stack_ ? prefix + "layers." + std::to_string(n) + "." : prefix, f);
    if (norm_) norm_->visit(prefix + "norm.", f);
  }

  Variable operator()(Tape& tape, Variable x, const Variable& key, const Variable& value,
                      const TransformerLayer::Call& call) {
    if (attention_) return key ? (*attention_)(tape, x, key, value, call.self) : (*attention_)(tape, x, call.self);
    for (TransformerLayer& layer : layers_) x = layer(tape, x, call);
    return norm_ ? (*norm_)(tape, x) : x;
  }

 private:
  std::unique_ptr<MultiHeadAttention> attention_;
  std::deque<TransformerLayer> layers_;
  std::unique_ptr<Norm> norm_;
  bool is_stack_ = false;
};

/// Tensors of the file; they stay until all was written.
class Tensors {
 public:
  explicit Tensors(const Safetensors& file) : file_(&file) {}
  View<const void> view(const std::string& name) {
    if (!file_->contains(name)) return {};
    arrays_.push_back(file_->read(name));
    return std::as_const(arrays_.back()).view();
  }
  Variable leaf(Tape& tape, const std::string& name) {
    const auto v = view(name);
    return v ? tape.leaf(v) : Variable{};
  }

 private:
  const Safetensors* file_;
  std::deque<Array> arrays_;
};

/// Masks are named after the layer's part: "self.ignore_mask", "cross.bias".
nn::AttentionCall call_of(Tape& tape, Tensors& tensors, const std::string& part) {
  nn::AttentionCall call;
  call.masks.ignore_mask = tensors.view(part + ".ignore_mask");
  if (const auto bias = tensors.view(part + ".bias")) call.bias = tape.constant(bias);
  return call;
}

void fill(Layer& layer, uint64_t seed) {
  uint32_t tensor = 0;
  nn::for_parameters(layer, [&](const std::string&, nn::Parameter& p) {
    fill_uniform(p.value.view(), 0.4, {.seed = seed, .tensor = tensor++});
    p.changed();
  });
}

void run(const std::string& in, const std::string& out) {
  const Safetensors file(in);
  const Settings settings(file);
  Tensors tensors(file);
  const View<const void> x = tensors.view("x");
  Layer layer(settings, x.dtype);
  if (settings.whole("seed") > 0) fill(layer, uint64_t(settings.whole("seed")));
  else nn::load_parameters(layer, file, {.prefix = "state."});

  Tape tape({.storage = x.dtype});
  TransformerLayer::Call call{.self = call_of(tape, tensors, "self"), .cross = call_of(tape, tensors, "cross")};
  const Variable inputs[] = {tape.leaf(x), tensors.leaf(tape, "key"), tensors.leaf(tape, "value"),
                             tensors.leaf(tape, "memory")};
  call.memory = inputs[3];
  Array weights;
  if (settings.is_on("weights")) {
    weights =
        Array(x.dtype, {x.shape[0], settings.whole("heads"), x.shape[1], inputs[1] ? inputs[1].shape(1) : x.shape[1]});
    call.self.weights = weights.view();
  }
  const Variable y = layer(tape, inputs[0], inputs[1], inputs[2], call);
  std::vector<NamedTensor> results = nn::tensors_of(nn::parameters_of(layer), "state.");
  results.push_back({"y", y.value()});
  if (settings.is_on("weights")) results.push_back({"weights", std::as_const(weights).view()});
  if (const auto dy = tensors.view("dy")) {
    tape.backward(y, dy);
    constexpr const char* kNames[] = {"dx", "dkey", "dvalue", "dmemory"};
    for (size_t n = 0; n < std::size(inputs); ++n)
      if (inputs[n]) results.push_back({kNames[n], inputs[n].gradient()});
    for (const auto& [name, p] : nn::parameters_of(layer))
      if (p->is_reached) results.push_back({"gradient." + name, std::as_const(p->gradient).view()});
  }
  write_safetensors(out, results);
}

}  // namespace
}  // namespace qkv::torch_tests

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fputs("usage: layers_of_torch IN.safetensors OUT.safetensors\n", stderr);
    return 2;
  }
  qkv::torch_tests::run(argv[1], argv[2]);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "layers_of_torch: %s\n", e.what());
  return 1;
}
