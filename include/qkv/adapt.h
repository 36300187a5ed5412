// From a policy (a struct with a formula) to a pass (a virtual call a tile). Users of built-in policies never look here.
#pragma once
#include <algorithm>
#include <array>
#include <cassert>
#include <concepts>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "qkv/dual.h"
#include "qkv/error.h"
#include "qkv/pass.h"

#if defined(__GNUC__) && !defined(__clang__)
#define QKV_VECTORISE __attribute__((optimize("O3")))  // gcc 12 vectorises such loops at -O3 only; clang does at -O2
#else
#define QKV_VECTORISE
#endif

namespace qkv {

/// A tensor that a policy needs: a name in the policy, a view in the bound copy that lives for one call.
struct Parameter {
  std::string_view name;
  View<const void> view{};

  template <size_t N> constexpr explicit Parameter(const char (&literal)[N]) : name(literal, N - 1) {}

  /// The element at this index, converted; an axis of size 1 stands for any index. The index must be in range.
  template <class T, class... I> T get(I... index) const {
    const int64_t at = view.broadcast_offset(index...);
    switch (view.dtype) {
      case DType::kFloat32: return static_cast<T>(static_cast<const float*>(view.data)[at]);
      case DType::kFloat64: return static_cast<T>(static_cast<const double*>(view.data)[at]);
      case DType::kFloat16: return static_cast<T>(float(static_cast<const float16*>(view.data)[at]));
      case DType::kBFloat16: return static_cast<T>(float(static_cast<const bfloat16*>(view.data)[at]));
      case DType::kBool:
      case DType::kUInt8: return static_cast<T>(static_cast<const uint8_t*>(view.data)[at]);
      case DType::kInt8: return static_cast<T>(static_cast<const int8_t*>(view.data)[at]);
      case DType::kInt16: return static_cast<T>(static_cast<const int16_t*>(view.data)[at]);
      case DType::kUInt16: return static_cast<T>(static_cast<const uint16_t*>(view.data)[at]);
      case DType::kInt32: return static_cast<T>(static_cast<const int32_t*>(view.data)[at]);
      case DType::kUInt32: return static_cast<T>(static_cast<const uint32_t*>(view.data)[at]);
      case DType::kInt64: return static_cast<T>(static_cast<const int64_t*>(view.data)[at]);
      case DType::kUInt64: return static_cast<T>(static_cast<const uint64_t*>(view.data)[at]);
    }
    return T{};
  }
};

/// The tensor of that name in the inputs. Throws OptionError where there is none.
QKV_EXPORT View<const void> find_tensor(const Inputs&, std::string_view name);

namespace detail {

template <class P> constexpr bool kHasParameters = requires(P p) { p.parameters(); };
template <class P> constexpr bool kHasFields = requires(P p) { p.fields(); };
template <class P> constexpr bool kHasKeys = requires(const P& p, Row r) {
  { p.keys(r) } -> std::same_as<KeyRange>;
};
template <class P> constexpr bool kHasSees = requires(const P& p, Site s) {
  { p.sees(s) } -> std::same_as<bool>;
};
template <class P> constexpr bool kHasVisit = requires(const P& p, std::span<const Row> r, Stretches& s) {
  p.visit(r, s);
};

/// How many parameters a modifier reads for one pair: kReads where it says so, else one where it has any.
template <class P> constexpr int reads() {
  if constexpr (requires { P::kReads; }) return P::kReads;
  else return kHasParameters<P> ? 1 : 0;
}

/// How a formula reads a parameter: read(table, index...).
template <class T> struct Reader {
  template <class... I> T operator()(const Parameter& p, I... index) const { return p.get<T>(index...); }
};

/// The same with derivatives: the n-th read is the n-th variable, and where it came from is remembered.
template <class T, int N> struct DualReader {
  struct Source {
    const Parameter* parameter = nullptr;
    int64_t index = 0;  ///< of the element, in C order
  };
  template <class... I> Dual<T, N> operator()(const Parameter& p, I... index) {
    if (count + 1 >= N)
      throw OptionError("backward: a modifier of " + std::to_string(N - 1) +
                        " parameters for one pair reads more; set its kReads to their number");
    Dual<T, N> x(p.get<T>(index...));
    x.d[size_t(count) + 1] = 1;
    sources[size_t(count)] = {&p, p.view.broadcast_index(index...)};
    ++count;
    return x;
  }
  int count = 0;
  std::array<Source, N> sources{};
};

template <class M, class T, class R> T apply(const M& m, const T& score, Site at, R& read) {
  if constexpr (requires { m(score, at, read); }) return static_cast<T>(m(score, at, read));
  else return static_cast<T>(m(score, at));
}

/// How many parameters a policy lists.
template <class P> constexpr size_t parameters() {
  if constexpr (kHasParameters<P>) return std::tuple_size_v<decltype(std::declval<P&>().parameters())>;
  else return 0;
}

/// Every pair of the tile and its padding, lanes inside. A plain loop over the lanes: groups of 8 made gcc 12 unroll, not vectorise.
template <class F> void each(const Sites& t, F f) {
  const int rows = (t.rows + 7) & ~7, keys = (t.keys + 7) & ~7;
  if (t.lanes_are_queries()) {
    for (int j = 0; j < t.keys; ++j)
      for (int r = 0; r < rows; ++r) f(r, j);
  } else {
    for (int r = 0; r < t.rows; ++r)
      for (int j = 0; j < keys; ++j) f(r, j);
  }
}

/// The shortest text that reads as the same number. Functions of the library: a template over int would be compiled both
/// there and in the user's file with its flags, and the linker would keep either.
QKV_EXPORT std::string number_text(int64_t);
QKV_EXPORT std::string number_text(float);
QKV_EXPORT std::string number_text(double);

template <class N> using Printed = std::conditional_t<std::is_integral_v<N>, int64_t, N>;

template <class P> std::string text_of(P p) {
  std::string text;
  if constexpr (requires { P::kName; }) {
    text = P::kName;
    if constexpr (kHasFields<P>) {
      char separator = ':';
      std::apply(
          [&](auto&... f) {
            ((text += std::exchange(separator, ','), text += number_text(Printed<std::decay_t<decltype(f)>>(f))), ...);
          },
          p.fields());
    }
  }
  return text;
}
/// Without strings, so that a bound copy costs no allocation.
template <class P> passes::About flags() {
  passes::About a;
  if constexpr (requires { P::kReadsHead; }) a.reads_head = P::kReadsHead;
  if constexpr (requires { P::kReadsPositions; }) a.reads_positions = P::kReadsPositions;
  return a;
}
/// Throws OptionError: "strided:0: expected a step of 1 or more".
[[noreturn]] QKV_EXPORT void refuse(const std::string& policy, const char* fault);

/// A policy whose numbers can be wrong has `const char* fault() const`: what was expected, null where nothing is wrong. Asked
/// where the policy is added to an attention, so that no kernel meets a step of 0.
template <class P> passes::About describe(P p) {
  passes::About a = flags<P>();
  a.text = text_of(p);
  if constexpr (requires { p.fault(); }) {
    if (const char* fault = p.fault()) refuse(a.text, fault);
  }
  if constexpr (kHasParameters<P>) std::apply([&](auto&... x) { (a.tensors.push_back(x.name), ...); }, p.parameters());
  return a;
}
template <class P> P bound(P p, [[maybe_unused]] const Inputs& in) {
  if constexpr (kHasParameters<P>)
    std::apply([&](auto&... x) { ((x.view = find_tensor(in, x.name)), ...); }, p.parameters());
  return p;
}

template <class M, class T> constexpr bool kHasDerivative = requires(const M& m, T score, Site at, Reader<T>& read) {
  m.derivative(score, at, read);
}
|| requires(const M& m, T score, Site at) { m.derivative(score, at); };

template <class M> class ScoreOf final : public passes::Score {
 public:
  explicit ScoreOf(M m) : Score(describe(m)), m_(std::move(m)) {}
  ScoreOf(const M& m, const Inputs& in) : Score(flags<M>()), m_(bound(m, in)) {}
  void forward(const Tile<float>& t) const override { run(t); }
  void forward(const Tile<double>& t) const override { run(t); }
  void backward(const Tile<const float>& before, const Tile<float>& gradient,
                std::span<double* const> sums) const override {
    turn(before, gradient, sums);
  }
  void backward(const Tile<const double>& before, const Tile<double>& gradient,
                std::span<double* const> sums) const override {
    turn(before, gradient, sums);
  }
  const Score* bind(const Inputs& in, passes::Arena& arena) const override { return arena.make(ScoreOf(m_, in)); }

 private:
  /// Where the modifier brings its derivative by the score, `auto derivative(auto score, Site at[, auto& read]) const`, that is
  /// taken; dual numbers have it otherwise.
  template <class T>
  QKV_VECTORISE void turn(const Tile<const T>& before, const Tile<T>& gradient, std::span<double* const> sums) const {
    const bool wants_sums = std::ranges::any_of(sums, [](const double* s) { return s != nullptr; });
    if (wants_sums) return turn_with_sums(before, gradient, sums);
    each(gradient, [&](int r, int j) {
      Reader<T> read;
      const T above = gradient(r, j), slope = derivative<T>(before(r, j), gradient.site(r, j), read);
      gradient(r, j) = above == 0 ? T(0) : above * slope;
    });
  }
  template <class T> T derivative(T score, Site at, [[maybe_unused]] Reader<T>& read) const {
    if constexpr (requires { m_.derivative(score, at, read); }) {
      return static_cast<T>(m_.derivative(score, at, read));
    } else if constexpr (requires { m_.derivative(score, at); }) {
      return static_cast<T>(m_.derivative(score, at));
    } else {
      Reader<Dual<T, 1>> constants;
      Dual<T, 1> x(score);
      x.d[0] = 1;
      return apply<M, Dual<T, 1>>(m_, x, at, constants).d[0];
    }
  }
  /// Real pairs only, kKeysOfSum keys after the other, in each the rows ascending.
  template <class T>
  void turn_with_sums(const Tile<const T>& before, const Tile<T>& gradient, std::span<double* const> sums) const {
    const std::array<const Parameter*, parameters<M>()> listed = addresses();
    for (int first = 0; first < gradient.keys; first += passes::kKeysOfSum<T>) {
      const int last = std::min(first + passes::kKeysOfSum<T>, gradient.keys);
      for (int r = 0; r < gradient.rows; ++r)
        for (int j = first; j < last; ++j) turn_one(before(r, j), gradient.site(r, j), gradient(r, j), sums, listed);
    }
  }
  template <class T, class Listed>
  void turn_one(T score, Site at, T& gradient, std::span<double* const> sums, const Listed& listed) const {
    constexpr int kVariables = 1 + reads<M>();
    DualReader<T, kVariables> read;
    Dual<T, kVariables> x(score);
    x.d[0] = 1;
    const Dual<T, kVariables> y = apply<M, Dual<T, kVariables>>(m_, x, at, read);
    const T above = gradient;
    if (above == 0) return;
    Reader<T> plain;
    gradient = above * (kHasDerivative<M, T> ? derivative<T>(score, at, plain) : y.d[0]);
    for (int n = 0; n < read.count; ++n) {
      for (size_t p = 0; p < listed.size(); ++p) {
        if (listed[p] == read.sources[size_t(n)].parameter && sums[p] != nullptr)
          sums[p][read.sources[size_t(n)].index] += double(above) * double(y.d[size_t(n) + 1]);
      }
    }
  }
  auto addresses() const {
    std::array<const Parameter*, parameters<M>()> listed{};
    if constexpr (kHasParameters<M>) {
      size_t n = 0;
      std::apply([&](auto&... p) { ((listed[n++] = &p), ...); }, const_cast<M&>(m_).parameters());
    }
    return listed;
  }
  template <class T> QKV_VECTORISE void run(const Tile<T>& t) const {
    each(t, [&](int r, int j) {
      Reader<T> read;
      T& score = t(r, j);
      score = apply<M, T>(m_, score, t.site(r, j), read);
    });
  }
  M m_;
};

template <class P> class PatternOf final : public passes::Pattern {
 public:
  explicit PatternOf(P p) : Pattern(describe(p)), p_(std::move(p)) {}
  PatternOf(const P& p, const Inputs& in) : Pattern(flags<P>()), p_(bound(p, in)) {}
  bool exact() const override { return kHasKeys<P> && !kHasSees<P>; }
  KeyRange keys(const Row& r) const override {
    if constexpr (kHasKeys<P>) return p_.keys(r);
    else return r.present;
  }
  bool has_visit() const override { return kHasVisit<P>; }
  void visit([[maybe_unused]] std::span<const Row> rows, [[maybe_unused]] Stretches& out) const override {
    if constexpr (kHasVisit<P>) p_.visit(rows, out);
  }
  bool sees(Site at) const override {
    if constexpr (!kHasSees<P>) return in_keys(at);
    else if constexpr (!kHasKeys<P>) return p_.sees(at);
    else return in_keys(at) && p_.sees(at);
  }
  QKV_VECTORISE void hide(const Sites& t, uint8_t* visible) const override {
    each(t, [&](int r, int j) { visible[t.at(r, j)] &= uint8_t(PatternOf::sees(t.site(r, j))); });
  }
  const Pattern* bind(const Inputs& in, passes::Arena& arena) const override { return arena.make(PatternOf(p_, in)); }

 private:
  bool in_keys(Site at) const {
    const KeyRange everything{0, std::numeric_limits<int32_t>::max()};
    return p_.keys(Row{at.batch, at.head, at.row, at.query, everything, at.key - at.column}).holds(at.column);
  }
  P p_;
};

template <class O> class ObserverOf final : public passes::Observer {
 public:
  explicit ObserverOf(O own) : o(std::move(own)) {}
  std::unique_ptr<passes::Observer> fork() const override {
    auto copy = std::make_unique<ObserverOf>(o);
    if constexpr (requires { copy->o.clear(); }) copy->o.clear();
    return copy;
  }
  void see(const Tile<const float>& t) override { look(t); }
  void see(const Tile<const double>& t) override { look(t); }
  void join(const passes::Observer& later) override { o.join(static_cast<const ObserverOf&>(later).o); }
  O o;

 private:
  template <class T> void look(const Tile<const T>& t) {
    for (int j = 0; j < t.keys; ++j)
      for (int r = 0; r < t.rows; ++r) o.see(t(r, j), t.site(r, j));
  }
};

}  // namespace detail

/// A pattern of one's own as a pass. What Attention::visible calls.
template <class P> std::shared_ptr<const passes::Pattern> adapt_pattern(P p) {
  constexpr bool kUsable = detail::kHasKeys<P> || detail::kHasSees<P>;
  static_assert(
      kUsable,
      "qkv: a pattern needs `qkv::KeyRange keys(qkv::Row) const` (the columns one query sees, if they are one "
      "range) or `bool sees(qkv::Site) const` (one pair), public and const");
  if constexpr (kUsable) return std::make_shared<detail::PatternOf<P>>(std::move(p));
  else return nullptr;
}

/// A score modifier of one's own as a pass. What Attention::score calls.
template <class M> std::shared_ptr<const passes::Score> adapt_score(M m) {
  constexpr bool kPlain = requires(const M& c, float s, Site at) { static_cast<float>(c(s, at)); };
  constexpr bool kReads = requires(const M& c, float s, Site at, detail::Reader<float>& r) {
    static_cast<float>(c(s, at, r));
  };
  static_assert(kPlain || kReads,
                "qkv: a score modifier needs `auto operator()(auto score, qkv::Site at) const`, "
                "with a third argument `auto& read` where it has parameters");
  using D = Dual<float, 1 + detail::reads<M>()>;
  constexpr bool kDual = requires(const M& c, D s, Site at, detail::Reader<float>& r) { static_cast<D>(c(s, at, r)); }
  || requires(const M& c, D s, Site at) { static_cast<D>(c(s, at)); };
  static_assert(
      kDual || !(kPlain || kReads),
      "qkv: this score modifier takes float only and so has no derivative; write `auto operator()(auto score, ...)`");
  static_assert(!kReads || kPlain || detail::kHasParameters<M>,
                "qkv: a modifier that reads parameters lists them: `auto parameters() { return std::tie(table); }`");
  if constexpr (kDual && (kPlain || kReads)) return std::make_shared<detail::ScoreOf<M>>(std::move(m));
  else return nullptr;
}

/// Borrows an observer of any type for one call: a struct with `void see(double weight, qkv::Site at)` and
/// `void join(const Self& later)`. Forks are copies, with `clear()` called where it exists; without it the observer's
/// sums must be empty when the call begins.
class ObserverRef {
 public:
  template <class O>
  requires(!std::is_same_v<std::remove_cvref_t<O>, ObserverRef>) ObserverRef(O& observer)
      : object_(&observer),
        fork_([](void* p) -> std::unique_ptr<passes::Observer> {
          if constexpr (std::derived_from<O, passes::Observer>) return static_cast<O*>(p)->fork();
          else return detail::ObserverOf<O>(*static_cast<O*>(p)).fork();
        }),
        join_([](void* p, const passes::Observer& later) {
          if constexpr (std::derived_from<O, passes::Observer>) static_cast<O*>(p)->join(later);
          else static_cast<O*>(p)->join(static_cast<const detail::ObserverOf<O>&>(later).o);
        }) {
    if constexpr (!std::derived_from<O, passes::Observer>) {
      static_assert(
          requires(O & o, double weight, Site at) { o.see(weight, at); },
          "qkv: an observer needs `void see(double weight, qkv::Site at)`");
      static_assert(
          requires(O & o, const O& later) { o.join(later); },
          "qkv: an observer needs `void join(const Self& later)`, which adds what a later work item saw");
    }
  }
  std::unique_ptr<passes::Observer> fork() const { return fork_(object_); }
  void join(const passes::Observer& later) const { join_(object_, later); }

 private:
  void* object_;
  std::unique_ptr<passes::Observer> (*fork_)(void*);
  void (*join_)(void*, const passes::Observer&);
};

}  // namespace qkv
