#include "run_cases/positions.h"

#include <string_view>

#include "qkv/cache.h"
#include "qkv/init.h"
#include "qkv/positions.h"
#include "run_cases/arrays.h"

namespace run_cases {
namespace {

using qkv::DType;
using Names = std::vector<std::string_view>;

void check_names(const Json& inputs, const Names& known_inputs, const Json& options, const Names& known_options) {
  only_known(inputs, "input", known_inputs);
  only_known(options, "option", known_options);
}

/// Rows of width D: an array of any rank up to 4 as {1, 1, rows, D}.
qkv::Layout as_rows(const Values& x) {
  if (x.shape.empty()) throw Malformed("expected rows of numbers");
  const int64_t width = x.shape.back(), rows = width == 0 ? 0 : x.size() / width;
  const int64_t sizes[] = {1, 1, rows, width};
  return qkv::Layout(sizes);
}

const Names kRotaryOptions{"style", "base", "rotary_dim"};

qkv::Rotary read_rotary(const Json& options, int64_t width) {
  qkv::RotaryOptions o{.dim = options.contains("rotary_dim") ? read_count(options.at("rotary_dim")) : width};
  if (options.contains("base")) o.base = options.at("base").get<double>();
  const auto style = required(options, "style").get<std::string>();
  if (style != "half" && style != "interleaved") throw NotSupported(fmt::format("style \"{}\"", style));
  o.pairs = style == "half" ? qkv::RotaryPairs::kHalves : qkv::RotaryPairs::kNeighbours;
  return qkv::Rotary(o);
}

/// x turned, row by row; ids {1, rows}.
Values turned(const qkv::Rotary& rotary, const Values& x, const qkv::RowPositions& positions) {
  const qkv::Layout rows = as_rows(x);
  Array from(DType::kFloat64, x), to(DType::kFloat64, x.shape);
  qkv::rotary_forward(rotary, {from.view().data, DType::kFloat64, rows}, positions,
                      {to.view().data, DType::kFloat64, rows});
  return to.values();
}

Array one_row(Values numbers) {
  numbers.shape = {1, numbers.size()};
  return Array(DType::kInt32, numbers);
}

int64_t read_position(const Json& json) {
  if (!json.is_number_integer()) throw Malformed(fmt::format("expected a position, got {}", json.dump()));
  return json.get<int64_t>();
}

}  // namespace

Answer run_rope(const Json& inputs, const Json& options) {
  check_names(inputs, {"x", "positions"}, options, kRotaryOptions);
  const Values x = read_values(required(inputs, "x"));
  const Array ids = one_row(read_values(required(inputs, "positions")));
  return {{"out", turned(read_rotary(options, as_rows(x).shape[3]), x, {.ids = ids.as<const int32_t>()})}};
}

Answer run_rope_calls(const Json& inputs, const Json& options) {
  check_names(inputs, {"calls"}, options, kRotaryOptions);
  const Json& calls = required(inputs, "calls");
  Values all{{int64_t(calls.size())}, {}};
  std::optional<qkv::Rotary> rotary;
  for (const Json& call : calls) {
    only_known(call, "input", Names{"x", "offset"});
    const Values x = read_values(required(call, "x"));
    if (!rotary) rotary = read_rotary(options, as_rows(x).shape[3]);
    const Values y = turned(*rotary, x, {.offset = read_position(required(call, "offset"))});
    if (all.numbers.empty()) all.shape.insert(all.shape.end(), y.shape.begin(), y.shape.end());
    else if (!std::equal(y.shape.begin(), y.shape.end(), all.shape.begin() + 1, all.shape.end()))
      throw NotSupported("calls of different shapes");
    all.numbers.insert(all.numbers.end(), y.numbers.begin(), y.numbers.end());
  }
  return {{"out", all}};
}

Answer run_rope_shift(const Json& inputs, const Json& options) {
  check_names(inputs, {"x", "position", "shifts"}, options, kRotaryOptions);
  Values x = read_values(required(inputs, "x"));
  const qkv::Rotary rotary = read_rotary(options, as_rows(x).shape[3]);
  const Values zeros{{1, as_rows(x).shape[2]},
                     std::vector<std::optional<Number>>(size_t(as_rows(x).shape[2]), Number(0))};
  const Array same(DType::kInt32, zeros);  // every row moves by as much
  const auto move = [&](const Json& by) {
    x = turned(rotary, x, {.offset = read_position(by), .ids = same.as<const int32_t>()});
  };
  move(required(inputs, "position"));
  for (const Json& shift : required(inputs, "shifts")) move(shift);
  return {{"out", x}};
}

Answer run_rope_table(const Json& inputs, const Json& options) {
  check_names(inputs, {"entries"}, options, {});
  const Json& entries = required(inputs, "entries");
  Values cosines{{int64_t(entries.size())}, {}}, sines = cosines;
  for (const Json& entry : entries) {
    only_known(entry, "input", Names{"position", "dim", "base", "index"});
    const qkv::Rotary rotary(
        {.dim = read_count(required(entry, "dim")), .base = required(entry, "base").get<double>()});
    const std::vector<int64_t> shape{1, rotary.dim() / 2};
    Array cosine(DType::kFloat32, shape), sine(DType::kFloat32, shape);
    qkv::rotary_table(rotary, {.offset = read_position(required(entry, "position"))}, cosine.view(), sine.view());
    const int64_t index = read_count(required(entry, "index"));
    cosines.numbers.emplace_back(cosine.values().at(index));
    sines.numbers.emplace_back(sine.values().at(index));
  }
  return {{"cos", cosines}, {"sin", sines}};
}

Answer run_sinusoidal(const Json& inputs, const Json& options) {
  check_names(inputs, {"positions", "d_model"}, options, {});
  const Array ids = one_row(read_values(required(inputs, "positions")));
  const qkv::Layout rows = ids.view();
  Array table(DType::kFloat32, std::vector<int64_t>{rows.shape[1], read_count(required(inputs, "d_model"))});
  qkv::sinusoidal({.ids = ids.as<const int32_t>()}, table.view());
  return {{"out", table.values()}};
}

Answer run_t5_bucket(const Json& inputs, const Json& options) {
  check_names(inputs, {"query_positions", "key_positions"}, options, {"bidirectional", "num_buckets", "max_distance"});
  const Array queries = one_row(read_values(required(inputs, "query_positions")));
  const Array keys = one_row(read_values(required(inputs, "key_positions")));
  qkv::T5Buckets t{.buckets = int(read_count(required(options, "num_buckets"))),
                   .max_distance = int(read_count(required(options, "max_distance")))};
  if (!required(options, "bidirectional").get<bool>()) t.sides = qkv::T5Buckets::Sides::kPast;
  const auto from = queries.as<const int32_t>(), to = keys.as<const int32_t>();
  Values buckets{{from.shape[1], to.shape[1]}, {}};
  for (int64_t i = 0; i < from.shape[1]; ++i)
    for (int64_t j = 0; j < to.shape[1]; ++j)
      buckets.numbers.emplace_back(qkv::t5_bucket(t, int64_t{to(0, j)} - from(0, i)));
  return {{"buckets", buckets}};
}

Answer run_rel_shift(const Json& inputs, const Json& options) {
  check_names(inputs, {"x"}, options, {});
  const Values x = read_values(required(inputs, "x"));
  if (x.shape.size() != 2) throw NotSupported("x of more than one matrix");
  Array from(DType::kFloat64, x), to(DType::kFloat64, x.shape);
  qkv::relative_shift_forward({from.view().data, DType::kFloat64, as_rows(x)},
                              {to.view().data, DType::kFloat64, as_rows(x)});
  return {{"out", to.values()}};
}

Answer run_position_ids(const Json& inputs, const Json& options) {
  check_names(inputs, {"mask"}, options, {});
  const Values mask = read_values(required(inputs, "mask"));
  const Array is_token(DType::kBool, mask);
  Array ids(DType::kInt32, mask.shape);
  qkv::position_ids(is_token.as<const bool>(), ids.as<int32_t>());
  return {{"position_ids", ids.values()}};
}

Answer run_sliding_cache(const Json& inputs, const Json& options) {
  check_names(inputs, {"window", "prefill", "append"}, options, {});
  qkv::SlidingCache cache({.dtype = DType::kFloat64, .key_dim = 1, .value_dim = 1},
                          {.window = read_count(required(inputs, "window"))});
  Json visible = Json::array();
  const auto append = [&](const Values& numbers) {
    const Array rows(DType::kFloat64, numbers);
    const int64_t sizes[] = {1, 1, numbers.size(), 1};
    const qkv::View<const void> view(rows.view().data, DType::kFloat64, qkv::Layout(sizes));
    cache.append(view, view);
    const auto keys = cache.keys().as<const double>();
    Json now = Json::array();
    for (int64_t j = 0; j < keys.shape[2]; ++j) now.push_back(number_json(keys(0, 0, j)));
    visible.push_back(now);
  };
  append(read_values(required(inputs, "prefill")));
  const Values appended = read_values(required(inputs, "append"));
  for (int64_t n = 0; n < appended.size(); ++n) append({{1}, {appended.at(n)}});
  return {{"visible", visible}};
}

Answer run_beam_reorder(const Json& inputs, const Json& options) {
  check_names(inputs, {"cache", "beam_idx"}, options, {});
  const Values rows = read_values(required(inputs, "cache"));
  if (rows.shape.empty()) throw Malformed("expected a list of beams");
  const int64_t beams = rows.shape[0], width = beams == 0 ? 0 : rows.size() / beams;
  const Array from(DType::kFloat64, rows), index(DType::kInt32, read_values(required(inputs, "beam_idx")));
  const int64_t sizes[] = {beams, 1, 1, width};
  const qkv::View<const void> view(from.view().data, DType::kFloat64, qkv::Layout(sizes));
  qkv::KeyValueCache cache({DType::kFloat64, beams, 1, width, width});
  cache.append(view, view);
  cache.reorder(index.as<const int32_t>());
  Values reordered{rows.shape, {}};
  const auto keys = cache.keys().as<const double>();
  for (int64_t b = 0; b < beams; ++b)
    for (int64_t e = 0; e < width; ++e) reordered.numbers.emplace_back(keys(b, 0, 0, e));
  return {{"cache", reordered}};
}

Answer run_init_bound(const Json& inputs, const Json& options) {
  check_names(inputs, {"embed_dim"}, options, {});
  const int64_t width = read_count(required(inputs, "embed_dim"));
  const double separate = qkv::xavier_uniform_bound({.in = width, .out = width});
  const double packed = qkv::xavier_uniform_bound({.in = width, .out = 3 * width});
  const auto number = [](double x) { return Values{{}, {Number(x)}}; };
  return {{"xavier_separate", number(separate)},
          {"xavier_packed_uncorrected", number(packed)},
          {"ratio", number(separate / packed)}};
}

}  // namespace run_cases
