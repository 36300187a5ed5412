// Multi-head attention: projections around attend().
#include "core/format.h"
#include "qkv/layers.h"

namespace qkv::nn {
namespace {

/// The options with everything that was left to a rule. Throws OptionError.
MultiHeadAttention::Options completed(MultiHeadAttention::Options o) {
  if (o.width < 1 || o.heads < 1)
    option_error("MultiHeadAttention: width is {} and heads {}, expected 1 or more", o.width, o.heads);
  if (o.head_dim == 0 && o.width % o.heads != 0)
    option_error("MultiHeadAttention: width {} is no multiple of {} heads; choose others, or say head_dim", o.width,
                 o.heads);
  if (o.head_dim == 0) o.head_dim = o.width / o.heads;
  if (o.value_head_dim == 0) o.value_head_dim = o.head_dim;
  if (o.key_heads == 0) o.key_heads = o.heads;
  if (o.key_width == 0) o.key_width = o.width;
  if (o.value_width == 0) o.value_width = o.width;
  for (const auto& [name, n] : {std::pair{"head_dim", o.head_dim}, std::pair{"value_head_dim", o.value_head_dim},
                                std::pair{"key_heads", o.key_heads}, std::pair{"key_width", o.key_width},
                                std::pair{"value_width", o.value_width}})
    if (n < 1) option_error("MultiHeadAttention: {} is {}, expected 1 or more", name, n);
  if (o.heads % o.key_heads != 0)
    option_error("MultiHeadAttention: {} heads are no multiple of {} key heads", o.heads, o.key_heads);
  return o;
}

/// Rows of all heads, by what they project to.
struct Widths {
  int64_t query, key, value;
  explicit Widths(const MultiHeadAttention::Options& o)
      : query(o.heads * o.head_dim), key(o.key_heads * o.head_dim), value(o.key_heads * o.value_head_dim) {}
  int64_t all() const { return query + key + value; }
};

/// {B, rows, heads * dim} as {B, heads, rows, dim}.
Variable heads_of(const Variable& x, int64_t heads, int64_t dim, int64_t first = 0) {
  const int64_t width = x.shape(2), sizes[] = {x.shape(0), heads, x.shape(1), dim};
  const int64_t steps[] = {x.shape(1) * width, dim, width, 1};
  return x.seen_as(Layout(sizes, steps), first);
}

void expect_rows(const char* name, const Variable& x, int64_t width) {
  if (!x || x.layout().rank != 3 || x.shape(2) != width)
    shape_error("MultiHeadAttention: {} is {}, expected {{B, rows, {}}}", name, x ? x.layout() : Layout(), width);
}

void expect_no_record(const Tape& tape, const char* what) {
  if (tape.is_recording())
    option_error("MultiHeadAttention: {} has no gradient, but the tape records; make one with training = false", what);
}

/// What a call and a cache bring together.
Inputs with(Inputs masks, const Inputs& cached) {
  masks.query = cached.query, masks.key = cached.key, masks.value = cached.value;
  masks.key_lengths = cached.key_lengths, masks.query_offset = cached.query_offset, masks.key_start = cached.key_start;
  return masks;
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const Options& options)
    : out_proj({.in = completed(options).heads * completed(options).value_head_dim,
                .out = options.width,
                .has_bias = options.has_out_bias,
                .dtype = options.dtype}),
      options_(completed(options)) {
  const Options& o = options_;
  const Widths widths(o);
  if (o.key_width == o.width && o.value_width == o.width) {
    in_proj_weight.emplace(o.dtype, std::vector{widths.all(), o.width});
  } else {
    q_proj_weight.emplace(o.dtype, std::vector{widths.query, o.width});
    k_proj_weight.emplace(o.dtype, std::vector{widths.key, o.key_width});
    v_proj_weight.emplace(o.dtype, std::vector{widths.value, o.value_width});
  }
  if (o.has_query_bias || o.has_key_bias || o.has_value_bias) {
    const int64_t biases = (o.has_query_bias ? widths.query : 0) + (o.has_key_bias ? widths.key : 0) +
                           (o.has_value_bias ? widths.value : 0);
    in_proj_bias.emplace(o.dtype, std::vector{biases});
    in_proj_bias->decays = false;
  }
  if (o.normalises_heads) {
    const Norm::Options norm{.dim = o.head_dim, .kind = NormKind::kRms, .epsilon = 1e-6, .dtype = o.dtype};
    query_norm.emplace(norm), key_norm.emplace(norm);
  }
}

MultiHeadAttention::Projection MultiHeadAttention::projection(Part part) {
  const Options& o = options_;
  const Widths widths(o);
  const int64_t counts[] = {widths.query, widths.key, widths.value};
  const bool biased[] = {o.has_query_bias, o.has_key_bias, o.has_value_bias};
  std::optional<Parameter>* const own[] = {&q_proj_weight, &k_proj_weight, &v_proj_weight};
  const auto n = size_t(part);
  int64_t first = 0, first_bias = 0;
  for (size_t before = 0; before < n; ++before) {
    first += counts[before];
    first_bias += biased[before] ? counts[before] : 0;
  }
  Projection p;
  p.weight = in_proj_weight ? Rows(*in_proj_weight, first, counts[n]) : Rows(**own[n]);
  if (biased[n]) p.bias = Rows(*in_proj_bias, first_bias, counts[n]);
  return p;
}

Variable MultiHeadAttention::project(Tape& tape, Part part, const Variable& x) {
  const Projection p = projection(part);
  return linear(tape, x, p.weight, p.bias);
}

Variable MultiHeadAttention::operator()(Tape& tape, const Variable& x, const AttentionCall& call) {
  expect_rows("x", x, options_.width);
  const Options& o = options_;
  const bool all_or_no_bias = o.has_query_bias == o.has_key_bias && o.has_key_bias == o.has_value_bias;
  if (!in_proj_weight || !all_or_no_bias || o.normalises_heads) return (*this)(tape, x, x, x, call);
  const Variable projected = linear(tape, x, *in_proj_weight, in_proj_bias ? &*in_proj_bias : nullptr);
  const Widths widths(o);
  return attend_to(tape,
                   {.query = heads_of(projected, o.heads, o.head_dim),
                    .key = heads_of(projected, o.key_heads, o.head_dim, widths.query),
                    .value = heads_of(projected, o.key_heads, o.value_head_dim, widths.query + widths.key)},
                   call);
}

Variable MultiHeadAttention::operator()(Tape& tape, const Variable& x, const Variable& key, const Variable& value,
                                        const AttentionCall& call) {
  const Options& o = options_;
  expect_rows("x", x, o.width);
  if (call.memory) return attend_memory(tape, x, call);
  Variable q = project(tape, Part::kQuery, x);
  if (o.normalises_heads) q = normalise(tape, *query_norm, q);
  Heads heads = keys_of(tape, key, value);
  heads.query = heads_of(q, o.heads, o.head_dim);
  return attend_to(tape, heads, call);
}

MultiHeadAttention::Heads MultiHeadAttention::keys_of(Tape& tape, const Variable& key, const Variable& value) {
  const Options& o = options_;
  expect_rows("key", key, o.key_width), expect_rows("value", value, o.value_width);
  Variable k = project(tape, Part::kKey, key);
  if (o.normalises_heads) k = normalise(tape, *key_norm, k);
  return {.key = heads_of(k, o.key_heads, o.head_dim),
          .value = heads_of(project(tape, Part::kValue, value), o.key_heads, o.value_head_dim)};
}

/// Each head of {B, rows, heads * dim} on its own.
Variable MultiHeadAttention::normalise(Tape& tape, Norm& norm, const Variable& x) {
  const int64_t heads = x.shape(2) / options_.head_dim, sizes[] = {x.shape(0), x.shape(1), heads, options_.head_dim};
  return norm(tape, x.seen_as(Layout(sizes))).seen_as(x.layout());
}

Variable MultiHeadAttention::attend_to(Tape& tape, Heads h, const AttentionCall& call) {
  if (call.cache) return attend_cached(tape, h, call);
  if (options_.rotary) {
    h.query = rotate(tape, *options_.rotary, h.query, call.positions);
    h.key = rotate(tape, *options_.rotary, h.key, call.positions);
  }
  const Variable heads = attend(tape, options_.formula,
                                {.query = h.query,
                                 .key = h.key,
                                 .value = h.value,
                                 .bias = call.bias,
                                 .weights = call.weights,
                                 .rest = call.masks,
                                 .watcher = watcher});
  return out_proj(tape, heads);
}

Variable MultiHeadAttention::attend_cached(Tape& tape, Heads h, const AttentionCall& call) {
  expect_no_record(tape, "a cache");
  AttentionVariables in{.query = h.query, .weights = call.weights};
  std::visit(
      [&](auto& cache) {
        if (options_.rotary) {
          const RowPositions behind{.offsets = cache.lengths()};
          in.query = rotate(tape, *options_.rotary, h.query, behind);
          h.key = rotate(tape, *options_.rotary, h.key, behind);
        }
        cache.append(h.key.value(), h.value.value(), call.cache_rows, tape.call());
        in.rest = with(call.masks, cache.inputs(in.query.value()));
      },
      *call.cache);
  if (call.bias_of) in.bias = call.bias_of(in.rest);
  return out_proj(tape, attend(tape, options_.formula, in));
}

void MultiHeadAttention::remember(Tape& tape, const Variable& key, const Variable& value, KeyValueCache& cache) {
  expect_no_record(tape, "a memory");
  Heads h = keys_of(tape, key, value);
  if (options_.rotary) h.key = rotate(tape, *options_.rotary, h.key, {.offsets = cache.lengths()});
  cache.append(h.key.value(), h.value.value(), {}, tape.call());
}

Variable MultiHeadAttention::attend_memory(Tape& tape, const Variable& x, const AttentionCall& call) {
  expect_no_record(tape, "a memory");
  Variable q = project(tape, Part::kQuery, x);
  if (options_.normalises_heads) q = normalise(tape, *query_norm, q);
  q = heads_of(q, options_.heads, options_.head_dim);
  if (options_.rotary) q = rotate(tape, *options_.rotary, q, call.positions);
  AttentionVariables in{.query = q, .bias = call.bias, .weights = call.weights, .rest = call.masks};
  in.rest.key = call.memory->keys(), in.rest.value = call.memory->values();
  return out_proj(tape, attend(tape, options_.formula, in));
}

void MultiHeadAttention::visit(const std::string& prefix, const Visitor& f) {
  const auto visit_if = [&](const char* name, std::optional<Parameter>& p) {
    if (p) f(prefix + name, *p);
  };
  visit_if("in_proj_weight", in_proj_weight);
  visit_if("q_proj_weight", q_proj_weight), visit_if("k_proj_weight", k_proj_weight);
  visit_if("v_proj_weight", v_proj_weight), visit_if("in_proj_bias", in_proj_bias);
  if (query_norm) query_norm->visit(prefix + "query_norm.", f), key_norm->visit(prefix + "key_norm.", f);
  out_proj.visit(prefix + "out_proj.", f);
}

}  // namespace qkv::nn
