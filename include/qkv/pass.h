// What the drivers call: one virtual call a tile. Plain data only, so that code compiled by another compiler or for
// another instruction set can be called; nothing here names a vector type.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/view.h"

namespace qkv {

struct Inputs;

/// One pair. `query` and `key` are positions in the sequence, comparable with each other; `row` and `column` are
/// indices in the tensors of this call (a decode step has row 0). In packed batches they count within the sequence.
struct Site {
  int32_t batch, head, row, column, query, key;
};

/// Keys [first, last), as columns.
struct KeyRange {
  int32_t first, last;
  bool empty() const { return first >= last; }
  bool holds(int32_t column) const { return first <= column && column < last; }
};

/// A query with the columns that exist for it (key lengths are already applied) and the position of column 0.
struct Row {
  int32_t batch, head, row, query;
  KeyRange present;
  int32_t key_start;
};

/// Columns that a tile of queries may see, sorted and disjoint; what is missing is hidden from all of them.
using Stretches = std::vector<KeyRange>;

/// Some queries against some keys. One stride is 1: that axis holds the lanes and is padded to a multiple of 8.
/// Padding repeats the last real site, so that reading by site is always in range; what is written there is ignored.
struct Sites {
  int32_t rows, keys;  // real ones
  int32_t row_stride, key_stride;
  int32_t batch;
  const int32_t *head, *row, *query;  // {rows, padded}: heads of a group may share a tile
  const int32_t *column, *key;        // {keys, padded}
  bool lanes_are_queries() const { return row_stride == 1; }
  int64_t at(int r, int j) const { return r * int64_t{row_stride} + j * int64_t{key_stride}; }
  Site site(int r, int j) const { return {batch, head[r], row[r], column[j], query[r], key[j]}; }
};

/// Scores (scaled, natural units: no log2 e folded in), or weights.
template <class T> struct Tile : Sites {
  T* values;
  T& operator()(int r, int j) const { return values[at(r, j)]; }
};

namespace passes {

/// Gradients by tensors are summed over so many keys at a time, for each row, before the next keys come: then the same bits come
/// from tiles of any width that is a multiple of it, and those of AVX2 and AVX-512 are.
template <class T> inline constexpr int kKeysOfSum = 96 / int(sizeof(T));

/// Memory of one call for policies that have met their tensors.
class QKV_EXPORT Arena {
 public:
  virtual ~Arena();
  template <class T> T* make(T&& value) {
    void* place = allocate(sizeof(T), alignof(T));
    T* object = new (place) T(std::forward<T>(value));
    own(object, [](void* p) { static_cast<T*>(p)->~T(); });
    return object;
  }
  /// n values of a plain type, zero.
  template <class T> T* array_of(size_t n) {
    static_assert(std::is_trivially_destructible_v<T>);
    // NOLINTNEXTLINE(bugprone-sizeof-expression): T may be a pointer
    T* first = static_cast<T*>(allocate((n ? n : 1) * sizeof(T), alignof(T)));
    std::uninitialized_value_construct_n(first, n);
    return first;
  }

 protected:
  virtual void* allocate(size_t bytes, size_t alignment) = 0;
  virtual void own(void* object, void (*destroy)(void*)) = 0;
};

/// What every policy says about itself. A bound copy needs to know the two flags only. Copies are made by the library: an
/// inline copy in a file compiled for a newer machine could replace the library's own.
struct QKV_EXPORT About {
  About();
  About(const About&);
  About(About&&) noexcept;
  About& operator=(const About&);
  About& operator=(About&&) noexcept;
  ~About();

  std::string text;                       ///< as parse() reads it: "window:255,0"; empty where it has no name
  std::vector<std::string_view> tensors;  ///< what it needs from Inputs
  bool reads_head = true;                 ///< false: the same for all heads, so that a mask is made once
  bool reads_positions = true;            ///< false: indifferent to where queries stand, so that no alignment is needed
};

/// A step between the dot product and the weights. Immutable, shared by threads.
class QKV_EXPORT Score {
 public:
  explicit Score(About about);
  virtual ~Score();
  const About& about() const { return about_; }
  virtual void forward(const Tile<float>&) const = 0;  ///< scores in place
  virtual void forward(const Tile<double>&) const = 0;
  /// Turns the gradient by what forward() gave into the gradient by what it was given, in place. `before` is what it was given,
  /// of the same sites; its values are null where reads_scores() is false. A gradient of 0 stays 0 whatever the derivative is
  /// there, since hidden pairs have it. sums[n], where it is not null, has the shape of the
  /// n-th tensor in C order: the gradients by its elements are added there.
  virtual void backward(const Tile<const float>& before, const Tile<float>& gradient,
                        std::span<double* const> sums) const = 0;
  virtual void backward(const Tile<const double>& before, const Tile<double>& gradient,
                        std::span<double* const> sums) const = 0;
  /// Whether backward() looks at the scores; a step that only adds need not.
  virtual bool reads_scores() const;
  /// Whether the step adds its only tensor {B, Hq, L, S}, with all of L and S, to the scores: the gradient by it is that by the
  /// scores, and nobody has to sum it.
  virtual bool adds_matrix() const;
  /// A part of a tensor that holds all that backward() may add to, of tiles of these heads and columns: its elements [first, last)
  /// in C order. What is outside costs no time. The whole, where the step says nothing.
  struct Part {
    int64_t first = 0, last = std::numeric_limits<int64_t>::max();
  };
  virtual Part adds_to(size_t tensor, int32_t batch, KeyRange heads, KeyRange columns) const;
  /// A copy that has its tensors; lives for one call. Throws where they do not fit.
  virtual const Score* bind(const Inputs&, Arena&) const = 0;
  /// Whether it can hide pairs (a bias of -inf does). Such a step is asked for hide() like a pattern.
  virtual bool hides() const;
  virtual void hide(const Sites&, uint8_t* visible) const;
  /// Whether hide() would hide any of these pairs, where that is found out faster than which; true otherwise.
  virtual bool may_hide(const Sites&) const;

 private:
  About about_;
};

/// Who sees whom; knows nothing of scores. keys() is the hull of a row. Where exact() it is the whole truth: the driver
/// intersects the rows of all exact patterns, classifies, and writes their mask itself. Other patterns also clear
/// `visible` {like the scores of the tile} before any product: what nobody sees is then skipped.
class QKV_EXPORT Pattern {
 public:
  explicit Pattern(About about);
  virtual ~Pattern();
  const About& about() const { return about_; }
  virtual bool exact() const = 0;
  virtual KeyRange keys(const Row&) const = 0;
  virtual void visit(std::span<const Row>,
                     Stretches&) const;  ///< optional, for patterns that are not exact: makes them faster
  virtual bool has_visit() const;
  virtual void hide(const Sites&, uint8_t* visible) const = 0;  ///< visible &= sees; for patterns that are not exact
  virtual bool sees(Site) const = 0;                            ///< the specification, for oracle and tests
  virtual const Pattern* bind(const Inputs&, Arena&) const = 0;

 private:
  About about_;
};

/// Sees finished weights. A fork belongs to one work item: one batch entry, one query head, a range of columns; key
/// blocks ascending, rows ascending within each. Forks are joined in item order, so an observer needs neither locks nor
/// a thought about threads, and its sums have one order. Hidden pairs arrive with weight 0 or not at all.
class QKV_EXPORT Observer {
 public:
  virtual ~Observer();
  /// Called on a first fork before the sweep, with the shape of the weights {B, Hq, L, S}: throws where that does not fit.
  virtual void begin(const Extents& weights);
  virtual std::unique_ptr<Observer> fork() const = 0;  ///< same options, empty sums
  virtual void see(const Tile<const float>& weights) = 0;
  virtual void see(const Tile<const double>& weights) = 0;
  virtual void join(const Observer& later) = 0;
};

}  // namespace passes
}  // namespace qkv
