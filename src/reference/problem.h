// What a call means, for the references: sizes, positions, who sees whom and what happens to a score, one pair at a time.
// Slow and plain on purpose. Nothing here is shared with the kernels but the scalar formulas of the policies.
#pragma once
#include <memory>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

#include "qkv/attention.h"

namespace qkv::reference {

/// The derivatives of one modified score, computed in the arithmetic of the score.
struct Derivatives {
  long double by_score = 1;
  struct Read {
    std::string_view tensor;
    int64_t index;  ///< of the element, in C order
    long double derivative;
  };
  std::vector<Read> by_read;
};

/// One score modifier, for one pair. `long double` is the oracle's arithmetic, `float` that of the plain evaluation.
class Modifier {
 public:
  virtual ~Modifier() = default;
  virtual float modify(float score, Site) const = 0;
  virtual double modify(double score, Site) const = 0;
  virtual long double modify(long double score, Site) const = 0;
  virtual bool hides(Site) const = 0;
  virtual Derivatives derive(float score, Site) const = 0;
  virtual Derivatives derive(double score, Site) const = 0;
  virtual Derivatives derive(long double score, Site) const = 0;
};

/// An attention with its inputs, checked by nobody: only for calls that forward() accepts. Borrows both.
/// Indices: batch b, query head h, query row i, key column j; rows and columns count within a packed sequence.
class Problem {
 public:
  Problem(const Attention&, const Inputs&);
  ~Problem();

  /// Functions that read rows of q, k or v, as all references do, throw Cancelled from then on where the stop is requested.
  void stop_by(std::stop_token stop) { stop_ = std::move(stop); }

  bool packed() const { return bool(in_.cumulative_query_lengths); }
  int64_t batches() const;
  int64_t query_heads() const { return in_.query.shape[1]; }
  int64_t head_dim() const { return in_.query.shape[packed() ? 2 : 3]; }
  int64_t value_dim() const { return in_.value.shape[packed() ? 2 : 3]; }
  int64_t queries(int64_t b) const;     ///< rows of this entry
  int64_t columns(int64_t b) const;     ///< columns of this entry, whether they exist or not
  int64_t valid_keys(int64_t b) const;  ///< those that exist

  std::vector<double> query(int64_t b, int64_t h, int64_t i) const;  ///< {head_dim}
  std::vector<double> key(int64_t b, int64_t h, int64_t j) const;    ///< {head_dim}, of the key head that head h reads
  std::vector<double> value(int64_t b, int64_t h, int64_t j) const;  ///< {value_dim}
  double scale() const;
  Site site(int64_t b, int64_t h, int64_t i, int64_t j) const;
  bool sees(Site) const;
  template <class Real> Real modify(Real score, Site at) const {
    for (const auto& m : modifiers_) score = m->modify(score, at);
    return score;
  }
  const std::vector<std::unique_ptr<Modifier>>& modifiers() const { return modifiers_; }
  int64_t key_head(int64_t h) const;
  /// What dropout leaves of a weight: 0, or 1 / (1 - p); 1 where there is none.
  double dropout(Site) const;
  /// Scores without a key: the sink of head h, the zero key.
  std::vector<double> keyless_scores(int64_t h) const;

 private:
  std::vector<double> row(const View<const void>&, const View<const int32_t>& starts, int64_t b, int64_t h,
                          int64_t i) const;
  int64_t offset(int64_t b) const;
  int64_t key_start(int64_t b) const;

  const Attention& attention_;
  const Inputs& in_;
  std::unique_ptr<passes::Arena> arena_;
  std::vector<const passes::Pattern*> patterns_;
  std::vector<std::unique_ptr<Modifier>> modifiers_;
  std::stop_token stop_;
};

}  // namespace qkv::reference
