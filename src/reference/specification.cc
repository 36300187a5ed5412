#include "reference/specification.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

namespace qkv::reference {
namespace {

template <class N> void take(std::string_view& rest, N& value) {
  const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), value).ptr;
  rest.remove_prefix(size_t(end - rest.data()));
  if (!rest.empty()) rest.remove_prefix(1);  // the comma
}

/// The policy of type P that `text` describes, where it describes one.
template <class P> std::optional<P> as(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  if (text.substr(0, colon) != P::kName) return {};
  P policy{};
  std::string_view arguments = text.substr(std::min(colon + 1, text.size()));
  if constexpr (detail::kHasFields<P>) std::apply([&](auto&... f) { (take(arguments, f), ...); }, policy.fields());
  return policy;
}

template <class P> bool is(const passes::Pattern& pass, std::shared_ptr<const passes::Pattern>& found) {
  if (const auto policy = as<P>(pass.about().text)) found = std::make_shared<detail::PatternOf<P>>(*policy);
  return bool(found);
}

/// Whether this modifier drops the pair: only a bias of -inf does.
template <class M> bool drops(const M&, Site) { return false; }
template <> bool drops(const Bias& m, Site at) {
  return m.bias.get<double>(at.batch, at.head, at.row, at.column) == -std::numeric_limits<double>::infinity();
}

template <class M> class Formula final : public Modifier {
 public:
  Formula(const M& m, const Inputs& in) : m_(detail::bound(m, in)) {}
  float modify(float score, Site at) const override { return run(score, at); }
  double modify(double score, Site at) const override { return run(score, at); }
  long double modify(long double score, Site at) const override { return run(score, at); }
  bool hides(Site at) const override { return drops(m_, at); }
  Derivatives derive(float score, Site at) const override { return turn(score, at); }
  Derivatives derive(double score, Site at) const override { return turn(score, at); }
  Derivatives derive(long double score, Site at) const override { return turn(score, at); }

 private:
  template <class Real> Derivatives turn(Real score, Site at) const {
    constexpr int kVariables = 1 + detail::reads<M>();
    detail::DualReader<Real, kVariables> read;
    Dual<Real, kVariables> x(score);
    x.d[0] = 1;
    const auto y = detail::apply<M, Dual<Real, kVariables>>(m_, x, at, read);
    Derivatives d{y.d[0], {}};
    for (int n = 0; n < read.count; ++n)
      d.by_read.push_back({read.sources[size_t(n)].parameter->name, read.sources[size_t(n)].index, y.d[size_t(n) + 1]});
    return d;
  }
  template <class Real> Real run(Real score, Site at) const {
    detail::Reader<Real> read;
    return detail::apply<M, Real>(m_, score, at, read);
  }
  M m_;
};

class OwnPass final : public Modifier {
 public:
  OwnPass(const passes::Score& pass, const Inputs& in, passes::Arena& arena) : pass_(*pass.bind(in, arena)) {}
  float modify(float score, Site at) const override { return run(score, at); }
  double modify(double score, Site at) const override { return run(score, at); }
  long double modify(long double score, Site at) const override { return run(double(score), at); }
  bool hides(Site at) const override {
    if (!pass_.hides()) return false;
    const OnePair pair(at);
    uint8_t visible[kLanes];
    std::fill(visible, visible + kLanes, uint8_t{1});
    pass_.hide(pair.sites, visible);
    return !visible[0];
  }
  Derivatives derive(float score, Site at) const override { return turn(score, at); }
  Derivatives derive(double score, Site at) const override { return turn(score, at); }
  Derivatives derive(long double score, Site at) const override { return turn(double(score), at); }

 private:
  static constexpr int kLanes = 8;
  struct OnePair {
    explicit OnePair(Site at) {
      std::fill(head, head + kLanes, at.head);
      std::fill(row, row + kLanes, at.row);
      std::fill(query, query + kLanes, at.query);
      std::fill(column, column + kLanes, at.column);
      std::fill(key, key + kLanes, at.key);
      sites = {1, 1, 1, kLanes, at.batch, head, row, query, column, key};
    }
    OnePair(const OnePair&) = delete;
    OnePair& operator=(const OnePair&) = delete;
    int32_t head[kLanes], row[kLanes], query[kLanes], column[kLanes], key[kLanes];
    Sites sites;
  };
  template <class Real> Real run(Real score, Site at) const {
    const OnePair pair(at);
    Real values[kLanes];
    std::fill(values, values + kLanes, score);
    pass_.forward(Tile<Real>{pair.sites, values});
    return values[0];
  }
  /// By the score alone: what its tensors get is compared with differences.
  template <class Real> Derivatives turn(Real score, Site at) const {
    const OnePair pair(at);
    Real before[kLanes], gradient[kLanes];
    std::fill(before, before + kLanes, score);
    std::fill(gradient, gradient + kLanes, Real(1));
    const std::vector<double*> nowhere(8, nullptr);
    pass_.backward(Tile<const Real>{pair.sites, before}, Tile<Real>{pair.sites, gradient}, nowhere);
    return {gradient[0], {}};
  }
  const passes::Score& pass_;
};

template <class M> bool is(const passes::Score& pass, const Inputs& in, std::unique_ptr<Modifier>& found) {
  if (const auto policy = as<M>(pass.about().text)) found = std::make_unique<Formula<M>>(*policy, in);
  return bool(found);
}

}  // namespace

std::shared_ptr<const passes::Pattern> specification_of(const std::shared_ptr<const passes::Pattern>& pass) {
  std::shared_ptr<const passes::Pattern> found;
  const bool built_in = is<Causal>(*pass, found) || is<Window>(*pass, found) || is<Documents>(*pass, found) ||
                        is<KeepMask>(*pass, found) || is<IgnoreMask>(*pass, found);
  return built_in ? found : pass;
}

std::unique_ptr<Modifier> modifier_of(const passes::Score& pass, const Inputs& in, passes::Arena& arena) {
  std::unique_ptr<Modifier> found;
  const bool built_in = is<SoftCap>(pass, in, found) || is<SoftCaps>(pass, in, found) || is<Scales>(pass, in, found) ||
                        is<Alibi>(pass, in, found) || is<Bias>(pass, in, found);
  return built_in ? std::move(found) : std::make_unique<OwnPass>(pass, in, arena);
}

}  // namespace qkv::reference
