// Gradients of attention.
#pragma once
#include <vector>

#include "qkv/attention.h"

namespace qkv {

/// What forward() gave, and the gradients of the loss by it: what comes down from the layer above.
struct Upstream {
  View<const void> out{};   ///< as forward() wrote it; needed, as is dout
  View<const void> lse{};   ///< needed where row_max and row_sum are absent
  View<const void> dout{};  ///< d loss / d out, of the shape and type of `out`; strides of 0 are fine
  View<const void> dlse{};  ///< d loss / d lse, of the shape and type of `lse`; absent: 0
  /// As forward() wrote them: with both, weights have exactly the forward's bits. From lse alone
  /// they are exp(score - lse) with lse as given; a rounded float32 lse puts all weights of a row off by one factor of about
  /// eps * |lse| (at scores of 1e4 a thousandth). For partials that were merged there is nothing else.
  View<const void> row_max{}, row_sum{};
};

/// A gradient by one of Inputs::parameters, of the tensor's shape; float32, of float64 queries float64. It is summed in double, in
/// memory of the tensor's size for each thread.
struct NamedGradient {
  std::string_view name;
  View<void> view;
};

/// What goes out; an empty view is not computed. Asking for more never changes a bit of the rest.
struct Gradients {
  View<void> dquery{};  ///< like query in shape and type
  View<void> dkey{};    ///< like key; grouped heads sum into their key head
  View<void> dvalue{};  ///< like value
  // By parameters: of the parameter's shape; float32, of float64 queries float64.
  View<void> dbias{};          ///< summed over the axes of size 1
  View<void> dalibi_slopes{};  ///< {Hq}
  View<void> dsinks{};         ///< {Hq}
  std::vector<NamedGradient> dparameters{};

  bool add =
      false;  ///< adds to what is there instead of replacing it, and rounds to its type: bfloat16 sums of many calls are poor
};

/// d loss / d inputs for out, lse = forward(attention, inputs). With w the weights and ds the gradient by the scores:
///   dvalue = w^T dout,   ds = w (dout value^T - rowsum(dout out) + dlse),   then through the modifiers, last to first,
///   dquery = scale ds key,   dkey = scale ds^T query
/// The inputs are those of forward(), its dropout_seed too: nobody can tell a wrong one.
/// Hidden pairs have no influence; rows that see no key get and give exact zeros. Keys past their length get zeros. Same bits
/// for any number of threads, batch neighbours, padding and strides.
/// Throws ShapeError, DtypeError, OptionError, Cancelled. O(B Hq L S (3 D + 2 Dv)) time over the visible tiles; scratch does
/// not grow with L * S. Dao 2023 (arXiv:2307.08691), algorithm 2, for the order of the products.
QKV_EXPORT void backward(const Attention&, const Inputs&, const Upstream&, const Gradients&, const Call& = {});

/// What observe_gradients() shows of each pair of a query and a key.
enum class PairGradient : uint8_t {
  kWeight,      ///< d loss / d weight = dout . value, where dropout keeps it
  kScore,       ///< d loss / d score, after the modifiers: weight * (d loss / d weight - dout . out + dlse)
  kAttribution  ///< weight * d loss / d weight: how much of dout . out the pair brings
};

/// One more sweep, over gradients instead of weights: observers as in observe(), with numbers that may be negative. Hidden pairs
/// arrive with 0 or not at all.
QKV_EXPORT void observe_gradients(const Attention&, const Inputs&, const Upstream&, PairGradient,
                                  std::span<const ObserverRef>, const Call& = {});
inline void observe_gradients(const Attention& a, const Inputs& in, const Upstream& up, PairGradient what,
                              std::initializer_list<ObserverRef> who, const Call& call = {}) {
  observe_gradients(a, in, up, what, std::span(who.begin(), who.size()), call);
}

}  // namespace qkv
