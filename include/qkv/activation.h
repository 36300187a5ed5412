// Activations of feed-forward layers.
#pragma once
#include <cstdint>

namespace qkv::nn {

/// relu      max(x, 0), with the derivative 0 at 0
/// gelu      x Phi(x), Phi the distribution of the normal numbers (Hendrycks, Gimpel 2016)
/// gelu_tanh x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, their approximation
/// silu      x / (1 + e^-x) (Elfwing, Uchibe, Doya 2017; also called swish)
enum class Activation : uint8_t { kRelu, kGelu, kGeluTanh, kSilu };

}  // namespace qkv::nn
