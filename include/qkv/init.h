// First weights. A number is a function of the seed, of the tensor's number and of its place in C order: the same for any strides and
// number of threads, and, up to its rounding, for any type.
//
//   qkv::xavier_uniform(w_query, {.in = 512, .out = 512}, {.seed = 1, .tensor = 0});
//   qkv::gpt2_residual(w_out, 12, {.seed = 1, .tensor = 3});                        // of 12 layers
#pragma once
#include <cstdint>

#include "qkv/executor.h"
#include "qkv/view.h"

namespace qkv {

/// Which random numbers. Give every tensor of a model its own number: layers that begin alike stay alike.
struct RandomStream {
  uint64_t seed = 0;
  uint32_t tensor = 0;
};

/// Inputs and outputs of a weight matrix; of a convolution times its kernel's positions. Of a packed matrix of queries, keys and values
/// say those of one of the three: with out = 3 E the bound is smaller by sqrt 2 (what torch.nn.MultiheadAttention does).
struct Fans {
  int64_t in = 0, out = 0;
};

// Bounds of uniform numbers in [-bound, bound), and deviations of normal ones. All throw OptionError where a fan is below 1.

/// gain sqrt(6 / (in + out)), gain sqrt(2 / (in + out)): the variance stays about the same forward and backward. Glorot, Bengio 2010.
QKV_EXPORT double xavier_uniform_bound(Fans, double gain = 1);
QKV_EXPORT double xavier_normal_deviation(Fans, double gain = 1);
/// gain sqrt(3 / in), gain / sqrt(in): it stays the same through a ReLU with the gain sqrt 2. He et al. 2015.
inline constexpr double kReluGain = 1.4142135623730950488;
QKV_EXPORT double kaiming_uniform_bound(int64_t in, double gain = kReluGain);
QKV_EXPORT double kaiming_normal_deviation(int64_t in, double gain = kReluGain);
/// sqrt(3 / in), 1 / sqrt(in): through linear layers and SELU. LeCun et al. 1998, 4.6.
QKV_EXPORT double lecun_uniform_bound(int64_t in);
QKV_EXPORT double lecun_normal_deviation(int64_t in);
/// deviation / sqrt(2 layers): of the matrices that write into the residual stream, two a layer. Radford et al. 2019 (GPT-2), 2.3.
QKV_EXPORT double gpt2_residual_deviation(int64_t layers, double deviation = 0.02);

/// Numbers of [-bound, bound), with 2^53 steps. Any floating type, any strides. Throws OptionError, DtypeError, Cancelled.
QKV_EXPORT void fill_uniform(View<void> w, double bound, RandomStream, const Call& = {});
/// Normal numbers of mean 0, by Box and Muller 1958; none farther than 8.6 deviations.
QKV_EXPORT void fill_normal(View<void> w, double deviation, RandomStream, const Call& = {});
/// Normal numbers without those beyond `cut` deviations, drawn again; at 2 the deviation of what is left is 0.8796 of the given
/// one, which is not made up for (as PyTorch's trunc_normal_, unlike JAX and Keras).
QKV_EXPORT void fill_truncated_normal(View<void> w, double deviation, RandomStream, double cut = 2, const Call& = {});

// The two together, by the papers' names.
inline void xavier_uniform(View<void> w, Fans fans, RandomStream stream, const Call& call = {}) {
  fill_uniform(w, xavier_uniform_bound(fans), stream, call);
}
inline void xavier_normal(View<void> w, Fans fans, RandomStream stream, const Call& call = {}) {
  fill_normal(w, xavier_normal_deviation(fans), stream, call);
}
inline void kaiming_uniform(View<void> w, int64_t in, RandomStream stream, const Call& call = {}) {
  fill_uniform(w, kaiming_uniform_bound(in), stream, call);
}
inline void kaiming_normal(View<void> w, int64_t in, RandomStream stream, const Call& call = {}) {
  fill_normal(w, kaiming_normal_deviation(in), stream, call);
}
inline void lecun_uniform(View<void> w, int64_t in, RandomStream stream, const Call& call = {}) {
  fill_uniform(w, lecun_uniform_bound(in), stream, call);
}
inline void lecun_normal(View<void> w, int64_t in, RandomStream stream, const Call& call = {}) {
  fill_normal(w, lecun_normal_deviation(in), stream, call);
}
inline void gpt2_residual(View<void> w, int64_t layers, RandomStream stream, const Call& call = {}) {
  fill_normal(w, gpt2_residual_deviation(layers), stream, call);
}

}  // namespace qkv
