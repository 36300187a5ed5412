// score' = score + bias. Rows of the bias run along keys; where lanes are queries, blocks of 4 x 4 are transposed on the way.
#include <algorithm>
#include <limits>

#include "core/targets.h"
#include "policies/expect_name.h"
#include "qkv/policies.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "policies/bias.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "core/transpose-inl.h"
#include "hwy/highway.h"
#include "policies/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::policies {
namespace HWY_NAMESPACE {

/// values[j * stride + r] += bias[r][j] for 4 rows and `keys` keys, a multiple of 4.
void AddFourRows(float* values, int64_t stride, const float* const* bias, int keys) {
#if HWY_TARGET == HWY_SCALAR
  for (int j = 0; j < keys; ++j)
    for (int r = 0; r < 4; ++r) values[j * stride + r] += bias[r][j];
#else
  const hn::FixedTag<float, 4> d;
  hn::Vec<decltype(d)> column[4];
  for (int j = 0; j < keys; j += 4) {
    qkv::HWY_NAMESPACE::TransposeBlocks(d, hn::LoadU(d, bias[0] + j), hn::LoadU(d, bias[1] + j),
                                        hn::LoadU(d, bias[2] + j), hn::LoadU(d, bias[3] + j), column);
    for (int i = 0; i < 4; ++i) {
      float* at = values + (j + i) * stride;
      hn::StoreU(hn::Add(hn::LoadU(d, at), column[i]), d, at);
    }
  }
#endif
}

bool AnyMinusInf(const float* x, int n) {
  const hn::ScalableTag<float> d;
  const int lanes = int(hn::Lanes(d));
  const auto minus_inf = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto any = hn::FirstN(d, 0);
  int j = 0;
  for (; j + lanes <= n; j += lanes) any = hn::Or(any, hn::Eq(hn::LoadU(d, x + j), minus_inf));
  bool found = !hn::AllFalse(d, any);
  for (; j < n; ++j) found |= x[j] == -std::numeric_limits<float>::infinity();
  return found;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv::policies
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv {
namespace policies {
HWY_EXPORT(AddFourRows);
HWY_EXPORT(AnyMinusInf);
namespace {

/// The bias of element type E.
template <class E> class BiasPass final : public passes::Score {
 public:
  BiasPass(const Bias& p, const Inputs& in)
      : Score(flags(find_tensor(in, p.bias.name))), view_(find_tensor(in, p.bias.name).as<const E>()) {
    step_ = view_.shape[3] == 1 ? 0 : view_.strides[3];
  }
  void forward(const Tile<float>& t) const override { add(t); }
  void forward(const Tile<double>& t) const override { add(t); }
  void backward(const Tile<const float>&, const Tile<float>& gradient, std::span<double* const> sums) const override {
    sum(gradient, sums[0]);
  }
  void backward(const Tile<const double>&, const Tile<double>& gradient, std::span<double* const> sums) const override {
    sum(gradient, sums[0]);
  }
  bool reads_scores() const override { return false; }
  bool adds_matrix() const override { return view_.shape[2] != 1 && view_.shape[3] != 1; }
  Part adds_to(size_t, int32_t batch, KeyRange heads, KeyRange columns) const override {
    return {view_.broadcast_index(batch, heads.first, 0, columns.first),
            view_.broadcast_index(batch, heads.last - 1, view_.shape[2] - 1, columns.last - 1) + 1};
  }
  const Score* bind(const Inputs&, passes::Arena&) const override { return this; }
  bool hides() const override { return true; }
  void hide(const Sites& t, uint8_t* visible) const override {
    for (int r = 0; r < t.rows; ++r) {
      const E* row = row_of(t, r);
      for (int j = 0; j < t.keys; ++j)
        visible[t.at(r, j)] &= uint8_t(double(row[t.column[j] * step_]) != -std::numeric_limits<double>::infinity());
    }
  }
  bool may_hide(const Sites& t) const override {
    if (!std::is_same_v<E, float> || step_ != 1) return true;
    for (int r = 0; r < t.rows; ++r)
      if (HWY_DYNAMIC_DISPATCH(AnyMinusInf)(reinterpret_cast<const float*>(row_of(t, r)) + t.column[0], t.keys))
        return true;
    return false;
  }

 private:
  static passes::About flags(View<const void> bias) {
    passes::About a = detail::flags<Bias>();
    a.reads_head = bias.shape[1] != 1;
    return a;
  }
  const E* row_of(const Sites& t, int r) const {
    return view_.data + view_.broadcast_offset(t.batch, t.head[r], t.row[r]);
  }
  bool same_for_all_rows(const Sites& t) const {
    for (int r = 1; r < t.rows; ++r)
      if (row_of(t, r) != row_of(t, 0)) return false;
    return true;
  }

  template <class T> void sum(const Tile<T>& gradient, double* sums) const {
    if (sums == nullptr) return;
    const int64_t step = view_.shape[3] == 1 ? 0 : 1;
    for (int first = 0; first < gradient.keys; first += passes::kKeysOfSum<T>) {
      const int last = std::min(first + passes::kKeysOfSum<T>, gradient.keys);
      for (int r = 0; r < gradient.rows; ++r) {
        double* row = sums + view_.broadcast_index(gradient.batch, gradient.head[r], gradient.row[r]);
        for (int j = first; j < last; ++j) row[gradient.column[j] * step] += double(gradient(r, j));
      }
    }
  }

  template <class T> void add(const Tile<T>& t) const {
    int r = 0;
    if (t.lanes_are_queries()) {
      if (same_for_all_rows(t)) return add_one_row(t);
      if constexpr (std::is_same_v<E, float> && std::is_same_v<T, float>)
        if (step_ == 1) r = add_transposed(t);
    }
    for (; r < t.rows; ++r) {
      const E* row = row_of(t, r);
      for (int j = 0; j < t.keys; ++j) t(r, j) += T(row[t.column[j] * step_]);
    }
  }
  template <class T> void add_one_row(const Tile<T>& t) const {
    const E* row = row_of(t, 0);
    for (int j = 0; j < t.keys; ++j) {
      const T b = T(row[t.column[j] * step_]);
      T* values = t.values + t.at(0, j);
      for (int r = 0; r < t.rows; ++r) values[r] += b;
    }
  }
  /// Returns the first row that is left. Columns of the library's tiles follow each other.
  int add_transposed(const Tile<float>& t) const {
    const int whole = t.keys & ~3;
    int r = 0;
    for (; r + 4 <= t.rows; r += 4) {
      const float* rows[4];
      for (int i = 0; i < 4; ++i) rows[i] = row_of(t, r + i) + t.column[0];
      HWY_DYNAMIC_DISPATCH(AddFourRows)(t.values + r, t.key_stride, rows, whole);
      for (int i = 0; i < 4; ++i)
        for (int j = whole; j < t.keys; ++j) t(r + i, j) += rows[i][j];
    }
    return r;
  }
  View<const E> view_;
  int64_t step_;
};

/// Before it meets its tensor the type is not known.
class UnboundBias final : public passes::Score {
 public:
  explicit UnboundBias(Bias p) : Score(detail::describe(p)), p_(p) {}
  void forward(const Tile<float>&) const override { throw Error("bias: a step ran before it met its tensor"); }
  void forward(const Tile<double>&) const override { throw Error("bias: a step ran before it met its tensor"); }
  void backward(const Tile<const float>&, const Tile<float>&, std::span<double* const>) const override {
    throw Error("bias: a step ran before it met its tensor");
  }
  void backward(const Tile<const double>&, const Tile<double>&, std::span<double* const>) const override {
    throw Error("bias: a step ran before it met its tensor");
  }
  bool hides() const override { return true; }
  const Score* bind(const Inputs& in, passes::Arena& arena) const override {
    switch (find_tensor(in, p_.bias.name).dtype) {
      case DType::kFloat64: return arena.make(BiasPass<double>(p_, in));
      case DType::kFloat16: return arena.make(BiasPass<float16>(p_, in));
      case DType::kBFloat16: return arena.make(BiasPass<bfloat16>(p_, in));
      default: return arena.make(BiasPass<float>(p_, in));
    }
  }

 private:
  Bias p_;
};

}  // namespace
}  // namespace policies

std::shared_ptr<const passes::Score> adapt_score(Bias p) {
  policies::expect_name(p.bias, "bias");
  return std::make_shared<policies::UnboundBias>(p);
}
}  // namespace qkv
#endif
