// The operations of the schema that are not attention itself.
#include <fmt/format.h>

#include <array>
#include <string_view>

#include "qkv/heads.h"
#include "qkv/masks.h"
#include "qkv/merge.h"
#include "run_cases/arrays.h"
#include "run_cases/attention.h"
#include "run_cases/positions.h"
#include "run_cases/text.h"

namespace run_cases {
namespace {

using qkv::DType;

using Names = std::vector<std::string_view>;

void check_names(const Json& inputs, const Names& known_inputs, const Json& options, const Names& known_options) {
  only_known(inputs, "input", known_inputs);
  only_known(options, "option", known_options);
}

Values one_number(Number number) { return {{}, {number}}; }

Answer run_mask_polarity(const Json& inputs, const Json& options) {
  check_names(inputs, {"mha_bool_mask"}, options, {});
  const Values mask = read_values(required(inputs, "mha_bool_mask"));
  const Array ignore(DType::kBool, mask);
  Array keep(DType::kBool, mask.shape), additive(DType::kFloat32, mask.shape);
  qkv::keep_from_ignore(ignore.as<const bool>(), keep.as<bool>());
  qkv::additive_from_keep(keep.as<const bool>(), additive.view());
  return {{"keep_mask", keep.values()}, {"additive", additive.values()}};
}

Answer run_merge_masks(const Json& inputs, const Json& options) {
  check_names(inputs, {"attn_ignore_mask", "key_padding_ignore"}, options, {"num_heads"});
  const Array attention(DType::kBool, read_values(required(inputs, "attn_ignore_mask")));
  const Array padding(DType::kBool, read_values(required(inputs, "key_padding_ignore")));
  const int64_t heads = read_count(required(options, "num_heads"));
  const qkv::Layout ignored = attention.view(), padded = padding.view();
  const int axis = ignored.rank == 3 ? 1 : 0;
  Array keep(DType::kBool, std::vector<int64_t>{padded.shape[0], heads, ignored.shape[size_t(axis)], padded.shape[1]});
  qkv::merge_ignore_masks(attention.as<const bool>(), padding.as<const bool>(), keep.as<bool>());
  return {{"keep_mask", keep.values()}};
}

Answer run_linear_offset(const Json& inputs, const Json& options) {
  check_names(inputs, {"index", "strides", "offset", "shape"}, options, {});
  const auto index = read_shape(required(inputs, "index")), strides = read_shape(required(inputs, "strides"));
  if (index.size() != strides.size()) throw Malformed("index and strides differ in length");
  if (index.size() > size_t(qkv::kMaxRank)) throw NotSupported(fmt::format("{} axes", index.size()));
  std::vector<int64_t> shape(index);
  for (int64_t& n : shape) ++n;
  if (inputs.contains("shape")) shape = read_shape(inputs.at("shape"));
  const qkv::Layout layout(shape, strides);
  std::array<int64_t, qkv::kMaxRank> at{};
  std::ranges::copy(index, at.begin());
  const int64_t first = inputs.contains("offset") ? inputs.at("offset").get<int64_t>() : 0;
  Answer answer{{"offset", one_number(Number(first + layout.offset(at[0], at[1], at[2], at[3])))}};
  if (inputs.contains("shape")) answer["numel"] = one_number(Number(layout.size()));
  return answer;
}

Answer run_merge_partials(const Json& inputs, const Json& options) {
  check_names(inputs, {"out", "lse", "sink"}, options, {});
  const Values outs = read_values(required(inputs, "out")), sums = read_values(required(inputs, "lse"));
  if (outs.shape.size() != 2 || sums.shape.size() != 1 || outs.shape[0] != sums.shape[0])
    throw Malformed("expected out [parts][Dv] and lse [parts]");
  const int64_t parts = outs.shape[0], width = outs.shape[1];
  const Array all_outs(DType::kFloat64, outs), all_sums(DType::kFloat64, sums);
  std::vector<qkv::Partial> partials;
  for (int64_t n = 0; n < parts; ++n) {
    partials.push_back({qkv::View<const double>(all_outs.as<const double>().data + n * width, {1, 1, 1, width}),
                        qkv::View<const double>(all_sums.as<const double>().data + n, {1, 1, 1})});
  }
  Array sink;
  if (inputs.contains("sink")) {
    Values value = read_values(inputs.at("sink"));
    value.shape = {value.size()};
    sink = Array(DType::kFloat64, value);
  }
  Array out(DType::kFloat64, std::vector<int64_t>{1, 1, 1, width}), lse(DType::kFloat64, std::vector<int64_t>{1, 1, 1});
  qkv::merge_partials(partials, sink.view(), out.view(), lse.view());
  return {{"out", out.values()}, {"lse", one_number(lse.values().at(0))}};
}

Answer run_merge_heads(const Json& inputs, const Json& options) {
  check_names(inputs, {"x"}, options, {});
  const Values x = read_values(required(inputs, "x"));
  const Array from(DType::kFloat64, x);
  const qkv::Layout layout = from.view();
  Array to(DType::kFloat64, std::vector<int64_t>{layout.shape[0], layout.shape[2], layout.shape[1] * layout.shape[3]});
  qkv::merge_heads(from.view(), to.view());
  return {{"out", to.values()}};
}

Answer run_alibi_slopes(const Json& inputs, const Json& options) {
  check_names(inputs, {"n_heads"}, options, {});
  const std::vector<float> slopes = qkv::alibi_slopes(int(read_count(required(inputs, "n_heads"))));
  Values values{{int64_t(slopes.size())}, {}};
  for (const float slope : slopes) values.numbers.emplace_back(slope);
  return {{"slopes", values}};
}

Answer run_rollout(const Json& inputs, const Json& options) {
  check_names(inputs, {"layers"}, options, {});
  const Array layers(DType::kFloat64, read_values(required(inputs, "layers")));
  const qkv::Layout layout = layers.view();
  Array out(DType::kFloat64, std::vector<int64_t>{layout.shape[1], layout.shape[2]});
  qkv::rollout(layers.view(), out.view());
  return {{"out", out.values()}};
}

}  // namespace

const std::map<std::string_view, Operation>& operations() {
  static const std::map<std::string_view, Operation> all{{"sdpa", run_sdpa},
                                                         {"sdpa_strided", run_sdpa_strided},
                                                         {"sdpa_error", run_sdpa_error},
                                                         {"mask_polarity", run_mask_polarity},
                                                         {"merge_masks", run_merge_masks},
                                                         {"linear_offset", run_linear_offset},
                                                         {"merge_partials", run_merge_partials},
                                                         {"merge_partials_sink", run_merge_partials},
                                                         {"merge_heads", run_merge_heads},
                                                         {"alibi_slopes", run_alibi_slopes},
                                                         {"rollout", run_rollout},
                                                         {"rope", run_rope},
                                                         {"rope_calls", run_rope_calls},
                                                         {"rope_shift", run_rope_shift},
                                                         {"rope_table", run_rope_table},
                                                         {"sinusoidal", run_sinusoidal},
                                                         {"t5_bucket", run_t5_bucket},
                                                         {"rel_shift", run_rel_shift},
                                                         {"position_ids", run_position_ids},
                                                         {"sliding_cache", run_sliding_cache},
                                                         {"beam_reorder", run_beam_reorder},
                                                         {"init_bound", run_init_bound},
                                                         {"display_labels", run_display_labels},
                                                         {"row_labels", run_row_labels},
                                                         {"byte_offsets", run_byte_offsets},
                                                         {"html_text", run_html_text},
                                                         {"safetensors", run_safetensors}};
  return all;
}

}  // namespace run_cases
