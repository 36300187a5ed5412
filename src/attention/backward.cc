// The backward pass: blocks of keys take the queries, last to first, and add to their gradients in the order of the keys.
#include "qkv/backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/check.h"
#include "attention/gradient_targets.h"
#include "attention/key_block.h"
#include "attention/overlap.h"
#include "attention/turns.h"
#include "core/ceil_div.h"
#include "core/parallel.h"

namespace qkv {
namespace {

/// Rows of one query head of one batch entry, in arrays that have one row a query.
struct Line {
  int32_t batch, head;
  int64_t first;       ///< row 0 in those arrays
  int64_t first_step;  ///< its first kRowsOfStep rows among those of all lines
};

template <class T> class Backward {
 public:
  Backward(const Bound& b, const Given& given, const GradientTargets& to, const Call& call, Workspace::Impl& workspace)
      : b_(b), given_(given), to_(to), call_(call), workspace_(workspace), steps_(b) {}

  void run() {
    plan();
    workspace_.prepare_leases(leases(), bytes_);
    Carver shared(workspace_.call.reserve(shared_bytes()));
    lay_out(shared);
    clear_parameters();
    parallel(call_, int64_t(chunks_), [&](int64_t n) { prepare(n); });
    parallel(call_, int64_t(items_.size()), [&](int64_t) { sweep(); });
    if (to_.dquery) parallel(call_, int64_t(chunks_), [&](int64_t n) { finish(n); });
    if (to_.dsinks) write_sinks();
    write_parameters();
  }

 private:
  static constexpr int kRowsOfChunk = 5 * kRowsOfStep;  // of prepare() and finish()

  // ---- what there is to do ----

  void plan() {
    CallArena& arena = workspace_.arena;
    Line* lines = arena.array_of<Line>(size_t(b_.batch()) * size_t(b_.query_heads));
    int64_t* first_chunk = arena.array_of<int64_t>(size_t(b_.batch()) * size_t(b_.query_heads) + 1);
    size_t n = 0;
    for (int batch = 0; batch < b_.batch(); ++batch)
      for (int head = 0; head < b_.query_heads; ++head) {
        const int64_t queries = b_.entries[size_t(batch)].queries;
        lines[n] = {batch, head, rows_, steps_of_lines_};
        rows_ += queries;
        steps_of_lines_ += ceil_div(queries, kRowsOfStep);
        first_chunk[n++] = chunks_;
        chunks_ += ceil_div(queries, kRowsOfChunk);
      }
    first_chunk[n] = chunks_;
    lines_ = {lines, n};
    first_chunk_ = {first_chunk, n + 1};
    for (const ParameterTarget& p : to_.parameters) {
      if (!p.is_matrix) continue;
      matrix_ = &p;
      in_turn_ = p.view.shape[0] < b_.batch() || p.view.shape[1] < b_.query_heads;
    }
    items_ = plan_keys(b_, in_turn_ ? KeyOrder::kKeysInside : KeyOrder::kHeadsInside, arena);
    turns_.begin({arena.array_of<std::atomic<int64_t>>(items_.size()), items_.size()});
    for (const auto& step : b_.attention.scores()) tensors_ += int64_t(step->about().tensors.size());
    for (const ParameterTarget& p : to_.parameters)
      if (!p.is_matrix) sums_size_ += p.view.size();
    stride_ = round_up(b_.head_dim, steps_.prefill.vector);
    bytes_ = item_bytes();
  }

  int leases() const {
    const Executor& executor = call_.executor ? *call_.executor : default_executor();
    return int(std::clamp<int64_t>(std::max(int64_t(items_.size()), chunks_), 1, executor.concurrency()));
  }

  // ---- memory ----

  struct Scratch {
    KeyBlock<T> keys;
    T *query = nullptr, *dout = nullptr, *scaled = nullptr;  ///< {kRowsOfStep, width}
    T* rows = nullptr;                                       ///< {kKeysOfItem, widest}
    T* more = nullptr;                                       ///< the same
    double* sums = nullptr;                                  ///< {parameters_}: of this item
    double** of_tensor = nullptr;                 ///< {tensors_}: where in sums each tensor of each step begins
    std::span<double* const>* of_step = nullptr;  ///< {steps}
  };
  void lay_out_item(Carver& c, Scratch& s) const {
    s.keys.carve(c, b_, steps_.prefill, matrix_ != nullptr);
    const int widest = std::max(b_.head_dim, b_.value_dim);
    s.query = c.take<T>(int64_t{kRowsOfStep} * b_.head_dim);
    s.dout = c.take<T>(int64_t{kRowsOfStep} * b_.value_dim);
    s.scaled = c.take<T>(int64_t{kRowsOfStep} * b_.head_dim);
    s.rows = c.take<T>(int64_t{std::max(kKeysOfItem, kRowsOfChunk)} * widest);
    s.more = c.take<T>(int64_t{std::max(kKeysOfItem, kRowsOfChunk)} * widest);
    s.sums = c.take<double>(sums_size_);
    s.of_tensor = c.take<double*>(tensors_);
    s.of_step = c.take<std::span<double* const>>(int64_t(b_.scores.size()));
  }
  size_t item_bytes() const {
    Carver c;
    Scratch counted;
    lay_out_item(c, counted);
    return c.used();
  }
  void lay_out(Carver& c) {
    m_ = c.take<T>(rows_);
    share_ = c.take<T>(rows_);
    delta_ = c.take<T>(rows_);
    hulls_ = c.take<KeyRange>(steps_of_lines_);
    dq_ = c.take<T>(to_.dquery ? rows_ * stride_ : 0);
    totals_ = c.take<double>(sums_size_);
  }
  size_t shared_bytes() {
    Carver c;
    lay_out(c);
    return c.used();
  }
  /// Scratch of an item, for as long as it lives.
  struct Leased : Workspace::Impl::Lease {
    Leased(Backward& of) : Lease(of.workspace_, of.bytes_) {
      Carver c(this->data());
      of.lay_out_item(c, scratch);
    }
    Scratch scratch;
  };

  // ---- rows of queries ----

  struct Chunk {
    Line line;
    int32_t first, n;    ///< rows
    int64_t in_tensors;  ///< the first of them in tensors that may be packed
  };
  Chunk chunk(int64_t number) const {
    const auto after = std::upper_bound(first_chunk_.begin(), first_chunk_.end() - 1, number) - 1;
    const Line line = lines_[size_t(after - first_chunk_.begin())];
    const Entry& e = b_.entries[size_t(line.batch)];
    const auto first = int32_t((number - *after) * kRowsOfChunk);
    return {line, first, std::min(kRowsOfChunk, e.queries - first), e.first_query + first};
  }

  /// m, share and delta of some rows, and which keys they see; their dq is 0.
  void prepare(int64_t number) {
    const Leased leased(*this);
    const Chunk c = chunk(number);
    const Scratch& s = leased.scratch;
    const BlockRows<T> out =
        steps_.fetch(given_.out, c.line.batch, c.line.head, b_.value_dim, c.in_tensors, c.n, s.rows);
    const BlockRows<T> dout =
        steps_.fetch(given_.dout, c.line.batch, c.line.head, b_.value_dim, c.in_tensors, c.n, s.more);
    given_.deltas(c.line.batch, c.line.head, c.in_tensors, out, dout, c.n, b_.value_dim,
                  delta_ + c.line.first + c.first);
    for (int i = 0; i < c.n; ++i) {
      const auto [m, l] = given_.sums<T>(c.line.batch, c.line.head, c.in_tensors + i);
      m_[c.line.first + c.first + i] = m;
      share_[c.line.first + c.first + i] = l == 0 ? T(0) : 1 / l;
    }
    if (to_.dquery) std::fill_n(dq_ + (c.line.first + c.first) * stride_, c.n * stride_, T(0));
    for (int32_t i = c.first; i < c.first + c.n; i += kRowsOfStep)
      hulls_[c.line.first_step + i / kRowsOfStep] = hull_of(c.line, i, std::min(i + kRowsOfStep, c.first + c.n));
  }

  /// The columns that any of these rows sees, as far as ranges know.
  KeyRange hull_of(const Line& line, int32_t first, int32_t last) const {
    KeyRange hull{std::numeric_limits<int32_t>::max(), 0};
    for (int32_t i = first; i < last; ++i) {
      const KeyRange seen = b_.range(line.batch, line.head, i);
      if (!seen.empty()) hull = {std::min(hull.first, seen.first), std::max(hull.last, seen.last)};
    }
    return hull;
  }

  void finish(int64_t number) {
    const Leased leased(*this);
    const Chunk c = chunk(number);
    T* dq = dq_ + (c.line.first + c.first) * stride_;
    for (int64_t i = 0; i < c.n * stride_; ++i) dq[i] *= steps_.scale;
    put_rows(steps_.rows, to_.dquery, c.line.batch, c.line.head, c.in_tensors, c.n, b_.head_dim, dq, stride_, to_.add,
             leased.scratch.rows);
  }

  // ---- blocks of keys ----

  void sweep() {
    typename Turns::Item turn(turns_);
    const KeyItem& item = items_[size_t(turn.number())];
    Leased leased(*this);
    Scratch& s = leased.scratch;
    begin_sums(item, s);
    s.keys.start(b_, steps_, item,
                 {bool(to_.dquery), bool(to_.dkey), bool(to_.dvalue), matrix_ == nullptr ? -1 : int(matrix_->step)});
    const Entry& e = b_.entries[size_t(item.batch)];
    const int64_t steps = ceil_div(e.queries, kRowsOfStep);
    for (int n = 0; n < b_.group(); ++n)
      for (int64_t i = steps; i-- > 0;) {
        stop_point(call_.stop);
        step(item, turn.number(), n, int32_t(i * kRowsOfStep), n * steps + (steps - 1 - i), s);
      }
    write_keys(item, s);
    end_sums(item, turn.number(), s);
  }

  /// Takes kRowsOfStep queries from `first` on of the n-th head of the group through the keys of an item.
  void step(const KeyItem& item, int64_t number, int n, int32_t first, int64_t done, Scratch& s) {
    const Entry& e = b_.entries[size_t(item.batch)];
    const int head = b_.query_head(item.key_head, n), rows = std::min(kRowsOfStep, e.queries - first);
    const Line& line = lines_[size_t(item.batch) * size_t(b_.query_heads) + size_t(head)];
    const KeyRange hull = hulls_[line.first_step + first / kRowsOfStep];
    if (std::max(hull.first, item.columns.first) >= std::min(hull.last, item.columns.last))
      return turns_.pass(number, done + 1);
    RowTile tile;
    make_tile(b_, item.batch, item.key_head, n, 1, first, rows, 8, tile);
    const int64_t at = line.first + first;
    QueryRows<T> q{&tile, {}, {}, s.scaled, m_ + at, share_ + at, delta_ + at};
    q.query = steps_.fetch(b_.query, item.batch, head, b_.head_dim, e.first_query + first, rows, s.query);
    q.dout = steps_.fetch(given_.dout, item.batch, head, b_.value_dim, e.first_query + first, rows, s.dout);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < b_.head_dim; ++i) s.scaled[int64_t{r} * b_.head_dim + i] = q.query.row(r)[i] * steps_.scale;
    if (s.keys.step(b_, steps_, q, {s.of_step, b_.scores.size()})) {
      if (to_.dquery) {
        turns_.wait(item.keys_before, done + 1, [&](int64_t i) { return items_[size_t(i)].keys_before; });
        s.keys.add_to_queries(b_, dq_ + at * stride_, stride_);
      }
      if (matrix_ != nullptr) add_matrix(item, tile, s);
    }
    turns_.pass(number, done + 1);
  }

  void write_keys(const KeyItem& item, Scratch& s) {
    const int64_t before = b_.entries[size_t(item.batch)].first_key;
    int32_t column = item.columns.first;
    const auto put = [&](const RowsOf& to, const T* transposed, int lanes, int n, int width, T factor) {
      if (!to) return;
      if (transposed != nullptr) steps_.rows.transpose(transposed, lanes, width, n, factor, s.rows, width);
      else std::fill_n(s.rows, int64_t{n} * width, T(0));
      put_rows(steps_.rows, to, item.batch, item.key_head, before + column, n, width, s.rows, width, to_.add, s.more);
    };
    for (const KeyTile<T>& t : s.keys.tiles()) {
      const int n = t.columns.last - t.columns.first;
      put(to_.dkey, t.dk, t.lanes, n, b_.head_dim, steps_.scale);
      put(to_.dvalue, t.dv, t.lanes, n, b_.value_dim, T(1));
      column = t.columns.last;
    }
    // Keys that do not exist.
    put(to_.dkey, nullptr, 0, item.columns.last - column, b_.head_dim, T(1));
    put(to_.dvalue, nullptr, 0, item.columns.last - column, b_.value_dim, T(1));
  }

  // ---- parameters ----

  void clear_parameters() {
    std::fill_n(totals_, sums_size_, 0.0);
    if (to_.add) return;
    for (const ParameterTarget& p : to_.parameters) {
      if (!p.is_matrix) continue;
      const View<T> v = p.view.as<T>();
      parallel(call_, v.shape[0] * v.shape[1] * v.shape[2], [&](int64_t n) {
        const int64_t i = n % v.shape[2], h = n / v.shape[2] % v.shape[1], b = n / v.shape[2] / v.shape[1];
        for (int64_t j = 0; j < v.shape[3]; ++j) v(b, h, i, j) = 0;
      });
    }
  }

  /// f(the target, its sums in `sums`, the part of them that the item may add to).
  template <class F> void each_sum(const KeyItem& item, double* sums, F f) const {
    const int first = b_.query_head(item.key_head, 0), last = b_.query_head(item.key_head, b_.group() - 1);
    for (const ParameterTarget& p : to_.parameters) {
      if (p.is_matrix) continue;
      const auto part = b_.scores[p.step]->adds_to(p.tensor, item.batch, {first, last + 1}, item.columns);
      const int64_t begin = std::clamp<int64_t>(part.first, 0, p.view.size());
      f(p, sums, begin, std::clamp(part.last, begin, p.view.size()));
      sums += p.view.size();
    }
  }
  /// Sums of an item: all 0, each tensor in its place.
  void begin_sums(const KeyItem& item, Scratch& s) const {
    std::fill_n(s.of_tensor, tensors_, nullptr);
    double** tensor = s.of_tensor;
    for (size_t step = 0; step < b_.scores.size(); ++step) {
      const size_t n = b_.attention.scores()[step]->about().tensors.size();
      each_sum(item, s.sums, [&](const ParameterTarget& p, double* sums, int64_t, int64_t) {
        if (p.step == step) tensor[p.tensor] = sums;
      });
      s.of_step[step] = {tensor, n};
      tensor += n;
    }
    each_sum(item, s.sums, [](const ParameterTarget&, double* sums, int64_t first, int64_t last) {
      std::fill(sums + first, sums + last, 0.0);
    });
  }
  /// Items add their sums in the order of their numbers.
  void end_sums(const KeyItem& item, int64_t number, const Scratch& s) {
    if (sums_size_ == 0) return;
    turns_.wait(number - 1, std::numeric_limits<int64_t>::max(), [](int64_t) { return int64_t{-1}; });
    each_sum(item, s.sums, [&](const ParameterTarget&, const double* sums, int64_t first, int64_t last) {
      double* totals = totals_ + (sums - s.sums);
      for (int64_t i = first; i < last; ++i) totals[i] += sums[i];
    });
  }
  /// d loss / d bias is d loss / d score; several heads and batch entries add to one place in their order.
  void add_matrix(const KeyItem& item, const RowTile& rows, const Scratch& s) {
    if (in_turn_)
      turns_.wait(item.heads_before, std::numeric_limits<int64_t>::max(),
                  [&](int64_t i) { return items_[size_t(i)].heads_before; });
    const auto& kernels = kernels::backward_kernels<T>();
    const View<T> to = matrix_->view.as<T>();
    for (const KeyTile<T>& t : s.keys.tiles())
      for (int r = t.first_row; r < t.first_row + t.rows; ++r) {
        T* row = to.data + to.broadcast_offset(item.batch, rows.head[r], rows.row[r]);
        kernels.add(row + t.columns.first * to.strides[3], to.strides[3], t.dmatrix + int64_t{r} * t.lanes,
                    t.columns.last - t.columns.first);
      }
  }
  void write_parameters() {
    const double* sums = totals_;
    for (const ParameterTarget& p : to_.parameters) {
      if (p.is_matrix) continue;
      const View<T> v = p.view.as<T>();
      for (int64_t a = 0; a < v.shape[0]; ++a)
        for (int64_t b = 0; b < v.shape[1]; ++b)
          for (int64_t c = 0; c < v.shape[2]; ++c)
            for (int64_t d = 0; d < v.shape[3]; ++d) put(v(a, b, c, d), *sums++);
    }
  }
  void put(T& to, double x) const { to = to_.add ? T(double(to) + x) : T(x); }

  /// The sink's weight w has no value: d loss / d sink = sum over rows of w (0 - delta).
  void write_sinks() {
    const View<T> v = to_.dsinks.as<T>();
    for (int head = 0; head < b_.query_heads; ++head) {
      double sum = 0;
      const double sink = double(T(b_.sink(head)));
      for (int batch = 0; batch < b_.batch(); ++batch) {
        const Line& line = lines_[size_t(batch) * size_t(b_.query_heads) + size_t(head)];
        for (int32_t i = 0; i < b_.entries[size_t(batch)].queries; ++i) {
          const int64_t n = line.first + i;
          if (share_[n] != 0) sum -= std::exp(sink - double(m_[n])) * double(share_[n]) * double(delta_[n]);
        }
      }
      put(v(head), sum);
    }
  }

  const Bound& b_;
  const Given& given_;
  const GradientTargets& to_;
  const Call& call_;
  Workspace::Impl& workspace_;
  Steps<T> steps_;

  std::span<const Line> lines_;           ///< {B, Hq}
  std::span<const int64_t> first_chunk_;  ///< {B * Hq + 1}
  int64_t rows_ = 0, steps_of_lines_ = 0, chunks_ = 0;
  std::span<const KeyItem> items_;
  Turns turns_;
  const ParameterTarget* matrix_ = nullptr;
  bool in_turn_ = false;  ///< several heads or batch entries add to one element of the matrix
  size_t bytes_ = 0;
  int64_t stride_ = 0, sums_size_ = 0, tensors_ = 0;
  T *m_ = nullptr, *share_ = nullptr, *delta_ = nullptr;  ///< {rows}
  KeyRange* hulls_ = nullptr;                             ///< {steps of all lines}: what kRowsOfStep rows see
  T* dq_ = nullptr;                                       ///< {rows, stride}
  double* totals_ = nullptr;                              ///< {sums}
};

template <class T>
void backward_as(const Bound& b, const Upstream& up, const Gradients& gradients, const Call& call,
                 Workspace::Impl& workspace) {
  const Given given(b, up, "backward");
  const GradientTargets to(b, gradients, workspace.arena);
  check::apart("backward", b.inputs, up, gradients, workspace.arena);
  if (to.anything()) Backward<T>(b, given, to, call, workspace).run();
}

}  // namespace

void backward(const Attention& a, const Inputs& in, const Upstream& up, const Gradients& gradients, const Call& call) {
  WorkspaceOf workspace_of(call);
  Workspace::Impl& workspace = workspace_of.impl();
  const CallArena::Scope scope(workspace.arena);
  stop_point(call.stop);
  const Bound b(a, in, workspace.arena, "backward", Values::kNeeded);
  if (b.is_double()) backward_as<double>(b, up, gradients, call, workspace);
  else backward_as<float>(b, up, gradients, call, workspace);
}

}  // namespace qkv
