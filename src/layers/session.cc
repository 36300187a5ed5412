#include "qkv/session.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/format.h"

namespace qkv::nn {

/// What a session reads of a model.
struct SessionParts {
  TransformerStack* stack;
  Parameter* tokens;
  Rows head;

  explicit SessionParts(LanguageModel& m) : stack(&m.stack_), tokens(&m.token_embedding_), head(m.head()) {}
  explicit SessionParts(EncoderDecoder& m) : stack(&m.decoder_), tokens(&m.token_embedding_), head(m.head()) {}
};

struct Session::State {
  State(const SessionParts& model, const SessionOptions& o)
      : parts(model),
        options(o),
        tape({.call = o.call, .training = false, .storage = o.storage}),
        caches(
            model.stack->make_caches({.batch = o.batch, .chunk = o.chunk, .rollback = o.rollback, .dtype = o.storage})),
        last(o.storage, {o.batch, model.stack->options().width}),
        ids(size_t(o.batch * o.chunk)),
        rows(size_t(o.batch)),
        furthest(size_t(o.batch)) {
    for (const LayerCache& cache : caches) slides = slides || std::holds_alternative<SlidingCache>(cache);
  }

  View<const int32_t> lengths() const {
    return std::visit([](const auto& c) { return c.lengths(); }, caches[0]);
  }
  int64_t rows_of(View<const int32_t> counts, int64_t b, int64_t n) const { return counts ? counts(b) : n; }
  void check(View<const int32_t> tokens, View<const int32_t> counts) const;
  void rollback(const std::vector<int32_t>& steps);
  void read_chunk(View<const int32_t> tokens, View<const int32_t> counts, int64_t first);
  template <class F> void each_cache(const F& f) {
    for (LayerCache& cache : caches) std::visit(f, cache);
  }

  SessionParts parts;
  SessionOptions options;
  Tape tape;
  std::vector<LayerCache> caches;
  std::vector<KeyValueCache> memories;
  std::vector<int32_t> memory_lengths;
  Array last;  // {B, width}: after the last norm, of the last token of each entry
  std::vector<int32_t> ids, rows;
  std::vector<int32_t> furthest;  // {B}: the most tokens that an entry ever had since clear()
  bool slides = false;            // some layer forgets
  bool is_broken = false;         // a call ended halfway
  Variable logits;
};

namespace {

const SessionOptions& checked(const SessionOptions& o) {
  for (const auto& [name, n] : {std::pair{"batch", o.batch}, std::pair{"chunk", o.chunk}})
    if (n < 1) option_error("Session: {} is {}, expected 1 or more", name, n);
  return o;
}

SessionOptions with_batch(SessionOptions o, const EncoderDecoder::Source& source) {
  if (source.ids.rank != 2) shape_error("Session: source.ids is {}, expected {{B, S}}", source.ids);
  o.batch = source.ids.shape[0];
  return checked(o);
}

}  // namespace

Session::Session(LanguageModel& model, const SessionOptions& options)
    : state_(std::make_unique<State>(SessionParts(model), checked(options))) {}

Session::Session(EncoderDecoder& model, const EncoderDecoder::Source& source, const SessionOptions& options)
    : state_(std::make_unique<State>(SessionParts(model), with_batch(options, source))) {
  State& s = *state_;
  s.memories = s.parts.stack->remember(s.tape, model.encode(s.tape, source));
  for (int64_t b = 0; b < s.options.batch; ++b)
    s.memory_lengths.push_back(int32_t(source.lengths ? source.lengths(b) : source.ids.shape[1]));
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

void Session::State::check(View<const int32_t> tokens, View<const int32_t> counts) const {
  const int64_t batch = options.batch, context = parts.stack->options().context;
  const int64_t vocabulary = parts.stack->options().vocabulary;
  if (tokens.rank != 2 || tokens.shape[0] != batch || tokens.shape[1] < 1)
    shape_error("Session::read: ids is {}, expected {{{}, n}} with n of 1 or more", tokens, batch);
  if (counts && (counts.rank != 1 || counts.shape[0] != batch))
    shape_error("Session::read: rows is {}, expected {{{}}}", counts, batch);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t n = rows_of(counts, b, tokens.shape[1]);
    if (n < 0 || n > tokens.shape[1])
      option_error("Session::read: rows[{}] is {}, expected 0 to {}, the columns of ids", b, n, tokens.shape[1]);
    if (lengths()(b) + n > context && !parts.stack->can_slide())
      option_error(
          "Session::read: entry {} would have {} tokens, the context is {}; begin again with fewer, or give every layer a "
          "window and the model relative positions",
          b, lengths()(b) + n, context);
    for (int64_t l = 0; l < n; ++l)
      if (tokens(b, l) < 0 || tokens(b, l) >= vocabulary)
        option_error("Session::read: ids[{}, {}] is {}, expected 0 to {}", b, l, tokens(b, l), vocabulary - 1);
  }
}

/// Reads columns [first, first + chunk), and keeps what came of the last token of each entry.
void Session::State::read_chunk(View<const int32_t> tokens, View<const int32_t> counts, int64_t first) {
  const int64_t batch = options.batch, n = std::min(options.chunk, tokens.shape[1] - first);
  for (int64_t b = 0; b < batch; ++b) {
    rows[size_t(b)] = int32_t(std::clamp<int64_t>(rows_of(counts, b, tokens.shape[1]) - first, 0, n));
    for (int64_t l = 0; l < n; ++l) ids[size_t(b * n + l)] = l < rows[size_t(b)] ? tokens(b, first + l) : 0;
  }
  const Variable x = (*parts.stack)(
      tape, {ids.data(), {batch, n}}, *parts.tokens,
      {.memory_lengths = memories.empty() ? View<const int32_t>{} : View<const int32_t>(memory_lengths.data(), {batch}),
       .caches = caches,
       .rows = {rows.data(), {batch}},
       .memories = memories});
  const size_t row_bytes = size_t(x.shape(2)) * size_of(x.dtype());
  for (int64_t b = 0; b < batch; ++b)
    if (rows[size_t(b)] > 0)
      std::memcpy(static_cast<std::byte*>(last.data()) + size_t(b) * row_bytes,
                  static_cast<const std::byte*>(x.value().data) + size_t(b * n + rows[size_t(b)] - 1) * row_bytes,
                  row_bytes);
}

View<const void> Session::read(View<const int32_t> ids, View<const int32_t> rows) {
  State& s = *state_;
  s.check(ids, rows);
  if (s.is_broken) option_error("Session::read: a call before this one was stopped halfway; clear the session");
  s.logits = {};
  s.is_broken = true;
  for (int64_t first = 0; first < ids.shape[1]; first += s.options.chunk) s.read_chunk(ids, rows, first);
  s.logits = linear(s.tape, s.tape.constant(std::as_const(s.last).view()), s.parts.head);
  s.is_broken = false;
  for (size_t b = 0; b < s.furthest.size(); ++b) s.furthest[b] = std::max(s.furthest[b], s.lengths()(int64_t(b)));
  return s.logits.value();
}

View<const int32_t> Session::lengths() const { return state_->lengths(); }

void Session::State::rollback(const std::vector<int32_t>& steps) {
  for (size_t b = 0; b < steps.size(); ++b) {
    const int64_t length = lengths()(int64_t(b));
    const int64_t most = slides ? std::min(length, options.rollback - (furthest[b] - length)) : length;
    if (steps[b] < 0 || steps[b] > most)
      option_error("Session::rollback: {} steps of entry {}, expected 0 to {}{}", steps[b], b, most,
                   slides ? "; windows forget what came before, ask for more when the session is made" : "");
  }
  each_cache([&](auto& cache) { cache.rollback({steps.data(), {int64_t(steps.size())}}); });
}

void Session::rollback(int64_t steps) {
  if (steps > std::numeric_limits<int32_t>::max()) option_error("Session::rollback: {} steps are too many", steps);
  state_->rollback(std::vector<int32_t>(size_t(state_->options.batch), int32_t(steps)));
}
void Session::rollback(View<const int32_t> steps) {
  if (steps.rank != 1 || steps.shape[0] != state_->options.batch)
    shape_error("Session::rollback: steps is {}, expected {{{}}}", steps, state_->options.batch);
  std::vector<int32_t> all;
  for (int64_t b = 0; b < state_->options.batch; ++b) all.push_back(steps(b));
  state_->rollback(all);
}
void Session::clear() {
  state_->each_cache([](auto& cache) { cache.clear(); });
  std::ranges::fill(state_->furthest, 0);
  state_->is_broken = false;
}

void Session::reorder(View<const int32_t> beams) {
  State& s = *state_;
  const Call& call = s.options.call;
  s.each_cache([&](auto& cache) { cache.reorder(beams, call); });
  for (KeyValueCache& memory : s.memories) memory.reorder(beams, call);
  for (auto* numbers : {&s.memory_lengths, &s.furthest}) {
    const std::vector<int32_t> before = *numbers;
    for (size_t b = 0; b < before.size(); ++b) (*numbers)[b] = before[size_t(beams(int64_t(b)))];
  }
  Array moved(s.options.storage, s.last.shape());
  const size_t row_bytes = s.last.bytes() / size_t(s.options.batch);
  for (int64_t b = 0; b < s.options.batch; ++b)
    std::memcpy(static_cast<std::byte*>(moved.data()) + size_t(b) * row_bytes,
                static_cast<const std::byte*>(s.last.data()) + size_t(beams(b)) * row_bytes, row_bytes);
  s.last = std::move(moved);
}

size_t Session::bytes() const {
  size_t sum = 0;
  for (const LayerCache& cache : state_->caches) sum += std::visit([](const auto& c) { return c.bytes(); }, cache);
  for (const KeyValueCache& memory : state_->memories) sum += memory.bytes();
  return sum;
}

}  // namespace qkv::nn
