#include "run_cases/attention.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "qkv/backward.h"
#include "run_cases/arrays.h"

namespace run_cases {
namespace {

using qkv::DType;

constexpr std::array<std::string_view, 11> kOptions{"scale",       "align",        "q_offset", "causal",
                                                    "window_left", "window_right", "softcap",  "add_zero_attn",
                                                    "dropout_p",   "training",     "storage"};
constexpr std::array<std::string_view, 12> kInputs{"shapes",       "q",       "k",       "v",     "keep_mask",
                                                   "bias",         "kv_lens", "doc_ids", "sinks", "alibi_slopes",
                                                   "dropout_keep", "dout"};

/// The tensors of one call. What an entry does not have is empty.
struct Tensors {
  Array query, key, value, keep_mask, bias, sinks, slopes, lengths, offsets, query_documents, key_documents,
      dropout_keep;
  Array dout;

  qkv::Inputs inputs() const {
    return {.query = query.view(),
            .key = key.view(),
            .value = value.view(),
            .keep_mask = keep_mask.view(),
            .bias = bias.view(),
            .alibi_slopes = slopes.view(),
            .sinks = sinks.view(),
            .query_documents = query_documents.view(),
            .key_documents = key_documents.view(),
            .key_lengths = lengths.as<const int32_t>(),
            .query_offset = offsets.as<const int32_t>(),
            .dropout_keep = dropout_keep.view()};
  }
};

template <class T> T option(const Json& options, const char* key, T otherwise) {
  return options.contains(key) && !options.at(key).is_null() ? options.at(key).get<T>() : otherwise;
}

DType storage_of(const Json& options) {
  const auto storage = option<std::string>(options, "storage", "f32");
  if (storage == "f32") return DType::kFloat32;
  if (storage == "f16") return DType::kFloat16;
  throw NotSupported(fmt::format("storage {}", storage));
}

qkv::Align align_of(const Json& options) {
  const auto align = option<std::string>(options, "align", "top_left");
  if (align == "top_left") return qkv::Align::kTopLeft;
  if (align == "bottom_right") return qkv::Align::kBottomRight;
  throw Malformed(fmt::format("align is \"{}\"", align));
}

/// In the order of the schema: soft-cap, ALiBi, bias.
qkv::Attention attention_of(const Json& options, const qkv::Inputs& in) {
  qkv::Attention a;
  a.align(align_of(options));
  if (option(options, "causal", false)) a.visible(qkv::Causal{});
  const int left = option(options, "window_left", -1), right = option(options, "window_right", -1);
  if (left != -1 || right != -1) a.visible(qkv::Window{left, right});
  if (in.query_documents) a.visible(qkv::Documents{});
  if (in.keep_mask) a.visible(qkv::KeepMask{});
  if (const auto cap = option(options, "softcap", 0.0); cap != 0) a.score(qkv::SoftCap{cap});
  if (in.alibi_slopes) a.score(qkv::Alibi{});
  if (in.bias) a.score(qkv::Bias{});
  if (options.contains("scale") && !options.at("scale").is_null())
    a.scale(double(read_values(options.at("scale")).at(0)));
  if (in.sinks) a.weights(qkv::SinkSoftmax{});
  a.zero_key(option(options, "add_zero_attn", false));
  a.dropout(option(options, "dropout_p", 0.0));
  return a;
}

bool drops(const Json& options) { return option(options, "training", false) && option(options, "dropout_p", 0.0) != 0; }

/// The whole of doc_ids belongs to the keys; query i has the document of the key at its position, and none outside.
void read_documents(const Json& inputs, const Json& options, Tensors& t) {
  const Values keys = read_values(required(inputs, "doc_ids"));
  const auto query_shape = read_shape(required(required(inputs, "shapes"), "q"));
  if (keys.shape.size() != 2 || query_shape.size() != 4) throw Malformed("doc_ids is not a list of lists");
  const int64_t batch = keys.shape[0], length = keys.shape[1], queries = query_shape[2];
  const Values offsets = t.offsets.values(), lengths = t.lengths.values();
  Values ids{{batch, queries}, {}};
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t valid = lengths.size() ? int64_t(lengths.at(b)) : length;
    const int64_t offset = offsets.size() ? int64_t(offsets.at(offsets.size() == 1 ? 0 : b))
                           : align_of(options) == qkv::Align::kBottomRight ? valid - queries
                                                                           : 0;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t p = i + offset;
      ids.numbers.emplace_back(p >= 0 && p < length ? keys.at(b * length + p) : Number(-1));
    }
  }
  t.key_documents = Array(DType::kInt32, keys);
  t.query_documents = Array(DType::kInt32, ids);
}

/// Positions of query 0, where the options say them.
Array offsets_of(const Json& options) {
  if (!options.contains("q_offset") || options.at("q_offset").is_null()) return {};
  Values offsets = read_values(options.at("q_offset"));
  offsets.shape = {offsets.size()};
  return {DType::kInt32, offsets};
}

[[noreturn]] void refuse_draws() { throw NotSupported("dropout in training without \"dropout_keep\""); }

/// Everything but query, key and value.
void read_rest(const Json& inputs, const Json& options, Tensors& t) {
  const auto read = [&](const char* key, DType type) {
    return inputs.contains(key) ? Array(type, read_values(inputs.at(key))) : Array();
  };
  t.keep_mask = read("keep_mask", DType::kBool);
  t.bias = read("bias", storage_of(options));
  t.sinks = read("sinks", DType::kFloat32);
  t.slopes = read("alibi_slopes", DType::kFloat32);
  t.lengths = read("kv_lens", DType::kInt32);
  if (drops(options)) t.dropout_keep = read("dropout_keep", DType::kBool);
  if (drops(options) && !t.dropout_keep.view()) refuse_draws();
  t.offsets = offsets_of(options);
  if (inputs.contains("doc_ids")) read_documents(inputs, options, t);
}

/// {B, L, S}: the mean over the heads.
Values mean_over_heads(const Values& weights) {
  const int64_t batch = weights.shape[0], heads = weights.shape[1], cells = weights.shape[2] * weights.shape[3];
  Values mean{{batch, weights.shape[2], weights.shape[3]}, {}};
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t c = 0; c < cells; ++c) {
      Number sum = 0;
      for (int64_t h = 0; h < heads; ++h) sum += weights.at((b * heads + h) * cells + c);
      mean.numbers.emplace_back(sum / Number(heads));
    }
  return mean;
}

/// What forward() leaves for a backward pass, and the weights.
struct Forward {
  Array out, weights, lse, row_max, row_sum;

  explicit Forward(const qkv::Inputs& in) {
    const std::vector<int64_t> rows{in.query.shape[0], in.query.shape[1], in.query.shape[2]};
    out = Array(in.query.dtype, with(rows, in.value.shape[3]));
    weights = Array(DType::kFloat32, with(rows, in.key.shape[2]));
    lse = row_max = row_sum = Array(DType::kFloat32, rows);
  }
  static std::vector<int64_t> with(std::vector<int64_t> rows, int64_t last) {
    rows.push_back(last);
    return rows;
  }
  qkv::Outputs outputs() {
    return {.out = out.view(),
            .lse = lse.view(),
            .row_max = row_max.view(),
            .row_sum = row_sum.view(),
            .weights = weights.view()};
  }
};

Array like(qkv::View<const void> x, DType type) {
  return x ? Array(type, std::vector<int64_t>(x.shape.begin(), x.shape.begin() + x.rank)) : Array();
}

/// The gradients by everything that there is.
void add_gradients(const qkv::Attention& attention, const qkv::Inputs& in, const Forward& f, const Array& dout,
                   Answer& answer) {
  std::map<const char*, Array> d{{"dq", like(in.query, in.query.dtype)},
                                 {"dk", like(in.key, in.key.dtype)},
                                 {"dv", like(in.value, in.value.dtype)},
                                 {"dbias", like(in.bias, DType::kFloat32)},
                                 {"dalibi_slopes", like(in.alibi_slopes, DType::kFloat32)},
                                 {"dsinks", like(in.sinks, DType::kFloat32)}};
  qkv::backward(attention, in,
                {.out = f.out.view(), .dout = dout.view(), .row_max = f.row_max.view(), .row_sum = f.row_sum.view()},
                {.dquery = d.at("dq").view(),
                 .dkey = d.at("dk").view(),
                 .dvalue = d.at("dv").view(),
                 .dbias = d.at("dbias").view(),
                 .dalibi_slopes = d.at("dalibi_slopes").view(),
                 .dsinks = d.at("dsinks").view()});
  for (auto& [name, gradient] : d) {
    if (gradient.view()) answer[name] = gradient.values();
  }
}

Answer attend(const Json& options, const qkv::Inputs& in, const Array& dout = {}) {
  const qkv::Attention attention = attention_of(options, in);
  Forward f(in);
  qkv::forward(attention, in, f.outputs());
  Answer answer{{"out", f.out.values()},
                {"weights", f.weights.values()},
                {"avg_weights", mean_over_heads(f.weights.values())},
                {"lse", f.lse.values()}};
  if (dout.view()) add_gradients(attention, in, f, dout, answer);
  return answer;
}

/// The view of one tensor of sdpa_strided; every element of it lies in the buffer.
qkv::View<const void> strided_view(const Json& inputs, const char* which, Array& buffer) {
  const auto shape = read_shape(required(required(inputs, "shape"), which));
  const auto strides = read_shape(required(required(inputs, "strides"), which));
  const auto offset = required(required(inputs, "offset"), which).get<int64_t>();
  const qkv::Layout layout(shape, strides);
  int64_t first = offset, last = offset;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int64_t reach = (shape[axis] - 1) * strides[axis];
    (reach < 0 ? first : last) += reach;
  }
  if (layout.size() > 0 && (first < 0 || last >= buffer.view().size()))
    throw Malformed(
        fmt::format("{} reaches from element {} to {} of a buffer of {}", which, first, last, buffer.view().size()));
  const auto whole = buffer.view();
  const int64_t bytes = int64_t(size_of(whole.dtype)) * (layout.size() > 0 ? offset : 0);
  return {static_cast<const std::byte*>(whole.data) + bytes, whole.dtype, layout};
}

/// A tensor of any shape, also one that no memory could hold or that no tensor can have: every element is the same zero.
qkv::View<const void> zeros_of(const std::vector<int64_t>& shape, DType type) {
  static constexpr double kZero = 0;
  return {&kZero, type, qkv::Layout(shape, std::vector<int64_t>(shape.size(), 0))};
}

}  // namespace

Answer run_sdpa(const Json& inputs, const Json& options) {
  only_known(options, "option", kOptions);
  only_known(inputs, "input", kInputs);
  const auto read = [&](const char* key) {
    return Array(storage_of(options),
                 read_values(required(inputs, key), read_shape(required(required(inputs, "shapes"), key))));
  };
  Tensors t;
  t.query = read("q"), t.key = read("k"), t.value = read("v");
  if (inputs.contains("dout")) {
    auto shape = t.query.view().shape;
    shape[3] = t.value.view().shape[3];
    t.dout = Array(storage_of(options), read_values(inputs.at("dout"), {shape.begin(), shape.end()}));
  }
  read_rest(inputs, options, t);
  return attend(options, t.inputs(), t.dout);
}

Answer run_sdpa_strided(const Json& inputs, const Json& options) {
  only_known(options, "option", kOptions);
  only_known(inputs, "input", std::array<std::string_view, 4>{"shape", "strides", "offset", "buffer"});
  const auto buffer = [&](const char* key) {
    return Array(storage_of(options), read_values(required(required(inputs, "buffer"), key)));
  };
  if (drops(options)) refuse_draws();
  const Array offsets = offsets_of(options);
  Array q = buffer("q"), k = buffer("k"), v = buffer("v");
  return attend(options, {.query = strided_view(inputs, "q", q),
                          .key = strided_view(inputs, "k", k),
                          .value = strided_view(inputs, "v", v),
                          .query_offset = offsets.as<const int32_t>()});
}

Answer run_sdpa_error(const Json& inputs, const Json& options) {
  only_known(options, "option", kOptions);
  only_known(inputs, "input", std::array<std::string_view, 3>{"shapes", "keep_mask_shape", "bias_shape"});
  const Json& shapes = required(inputs, "shapes");
  const auto zeros = [&](const char* key) { return zeros_of(read_shape(required(shapes, key)), storage_of(options)); };
  qkv::Inputs in{.query = zeros("q"), .key = zeros("k"), .value = zeros("v")};
  if (inputs.contains("keep_mask_shape"))
    in.keep_mask = zeros_of(read_shape(inputs.at("keep_mask_shape")), DType::kBool);
  if (inputs.contains("bias_shape")) in.bias = zeros_of(read_shape(inputs.at("bias_shape")), storage_of(options));
  const Array offsets = offsets_of(options);
  in.query_offset = offsets.as<const int32_t>();
  qkv::forward(attention_of(options, in), in, {});  // checks as with outputs
  return {};
}

}  // namespace run_cases
