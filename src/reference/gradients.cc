#include "reference/gradients.h"

#include <algorithm>
#include <cmath>

namespace qkv::reference {
namespace {

/// Sums in Real of what GradientAnswer has in double.
template <class Real> struct Sums {
  struct Rows {
    int64_t heads, length, width;
    std::vector<Real> numbers;
    Rows(int64_t batch, int64_t h, int64_t l, int64_t w)
        : heads(h), length(l), width(w), numbers(size_t(batch * h * l * w)) {}
    Real* row(int64_t b, int64_t h, int64_t i) { return numbers.data() + ((b * heads + h) * length + i) * width; }
    RowGrid grid(Real factor) const {
      RowGrid g{heads, length, width, {}};
      for (const Real x : numbers) g.numbers.push_back(double(x * factor));
      return g;
    }
  };
  Rows dquery, dkey, dvalue;
  std::map<std::string, std::vector<Real>, std::less<>> by_tensor;

  void add(std::string_view name, int64_t index, const Inputs& in, Real x) {
    auto at = by_tensor.find(name);
    if (at == by_tensor.end())
      at = by_tensor.emplace(name, std::vector<Real>(size_t(find_tensor(in, name).size()))).first;
    at->second[size_t(index)] += x;
  }
};

template <class Real> Real dot(const std::vector<Real>& x, const std::vector<double>& y) {
  Real sum = 0;
  for (size_t d = 0; d < x.size(); ++d) sum += x[d] * Real(y[d]);
  return sum;
}

template <class Real> class Walk {
 public:
  Walk(const Problem& p, const Inputs& in, const LossGradients& loss)
      : p_(p),
        in_(in),
        loss_(loss),
        sums_{rows(p.query_heads(), true, p.head_dim()),
              rows(key_heads(), false, p.head_dim()),
              rows(key_heads(), false, p.value_dim()),
              {}} {}

  GradientAnswer walk() {
    for (int64_t b = 0; b < p_.batches(); ++b)
      for (int64_t h = 0; h < p_.query_heads(); ++h)
        for (int64_t i = 0; i < p_.queries(b); ++i)
          if (!loss_.rows || loss_.rows(b, h, i)) row(b, h, i);
    GradientAnswer answer{
        sums_.dquery.grid(Real(p_.scale())), sums_.dkey.grid(Real(p_.scale())), sums_.dvalue.grid(1), {}, 0};
    for (const auto& [name, x] : sums_.by_tensor) answer.by_tensor[name] = {x.begin(), x.end()};
    answer.largest_score = largest_score_;
    return answer;
  }

 private:
  int64_t key_heads() const { return in_.key.shape[1]; }
  typename Sums<Real>::Rows rows(int64_t heads, bool queries, int64_t width) const {
    int64_t longest = 0;
    for (int64_t b = 0; b < p_.batches(); ++b) longest = std::max(longest, queries ? p_.queries(b) : p_.columns(b));
    return {p_.batches(), heads, longest, width};
  }

  void row(int64_t b, int64_t h, int64_t i) {
    const RowAnswer answer = evaluate<Real>(p_, b, h, i);
    std::vector<Real> dout(size_t(p_.value_dim()));
    Real delta = -Real(loss_.dlse(b, h, i));
    for (size_t e = 0; e < dout.size(); ++e) {
      dout[e] = Real(loss_.dout(b, h, i, int64_t(e)));
      delta += dout[e] * Real(loss_.out ? loss_.out(b, h, i, int64_t(e)) : answer.out[e]);
    }
    const std::vector<double> query = p_.query(b, h, i);
    for (int64_t j = 0; j < p_.valid_keys(b); ++j) {
      const Site at = p_.site(b, h, i, j);
      if (!p_.sees(at)) continue;
      largest_score_ = std::max(largest_score_, std::abs(answer.modified_scores[size_t(j)]));
      const Real kept = Real(p_.dropout(at));
      const Real weight = loss_.lse ? std::exp(Real(answer.modified_scores[size_t(j)]) - Real(loss_.lse(b, h, i)))
                                    : Real(answer.weights[size_t(j)]);
      const Real ds = weight * (kept * dot(dout, p_.value(b, h, j)) - delta);
      const Real by_raw = through_modifiers(Real(answer.raw_scores[size_t(j)]), ds, at);
      const std::vector<double> key = p_.key(b, h, j);
      Real *dq = sums_.dquery.row(b, h, i), *dk = sums_.dkey.row(b, p_.key_head(h), j),
           *dv = sums_.dvalue.row(b, p_.key_head(h), j);
      for (size_t e = 0; e < key.size(); ++e) {
        dq[e] += by_raw * Real(key[e]);
        dk[e] += by_raw * Real(query[e]);
      }
      for (size_t e = 0; e < dout.size(); ++e) dv[e] += weight * kept * dout[e];
    }
    const std::vector<double> keyless = p_.keyless_scores(h);
    if (in_.sinks && std::isfinite(answer.lse)) {
      const Real lse = loss_.lse ? Real(loss_.lse(b, h, i)) : Real(answer.lse);
      sums_.add("sinks", h, in_, -delta * std::exp(Real(keyless.front()) - lse));
    }
  }

  Real through_modifiers(Real score, Real gradient, Site at) {
    std::vector<Real> before;
    for (const auto& m : p_.modifiers()) {
      before.push_back(score);
      score = m->modify(score, at);
    }
    for (size_t n = before.size(); n-- > 0;) {
      const Derivatives d = p_.modifiers()[n]->derive(before[n], at);
      for (const auto& read : d.by_read) sums_.add(read.tensor, read.index, in_, gradient * Real(read.derivative));
      gradient *= Real(d.by_score);
    }
    return gradient;
  }

  const Problem& p_;
  const Inputs& in_;
  const LossGradients& loss_;
  Sums<Real> sums_;
  double largest_score_ = 0;
};

}  // namespace

template <class Real> GradientAnswer gradients(const Problem& p, const Inputs& in, const LossGradients& loss) {
  return Walk<Real>(p, in, loss).walk();
}
template GradientAnswer gradients<float>(const Problem&, const Inputs&, const LossGradients&);
template GradientAnswer gradients<double>(const Problem&, const Inputs&, const LossGradients&);
template GradientAnswer gradients<long double>(const Problem&, const Inputs&, const LossGradients&);

}  // namespace qkv::reference
