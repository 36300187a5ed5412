#include "qkv/problem_of_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "qkv/error.h"
#include "qkv/heads.h"
#include "qkv/loss.h"
#include "qkv/say.h"
#include "qkv/typed.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

template <class T> T number_of(std::string_view text, std::string_view option) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range)
    throw OptionError(
        fmt::format("{}: expected a number of at most {}, got {}", option, std::numeric_limits<T>::max(), text));
  if (error != std::errc() || end != text.data() + text.size())
    throw OptionError(fmt::format("{}: expected a whole number, got '{}'", option, text));
  return value;
}

std::vector<int32_t> numbers_of(std::string_view text, std::string_view option) {
  std::vector<int32_t> numbers;
  for (size_t first = 0; first <= text.size();) {
    const size_t last = std::min(text.find(',', first), text.size());
    numbers.push_back(number_of<int32_t>(text.substr(first, last - first), option));
    first = last + 1;
  }
  return numbers;
}

/// Tensors that make a formula where they are given as options.
constexpr const char* kFormulaTensors[] = {"keep_mask", "ignore_mask", "bias", "sinks", "document_ids"};

/// What --attention says as text, but for the alignment.
bool has_named_options(const AttentionOptions& o) {
  return o.causal || o.zero_key || o.tiled_heads || !o.window.empty() || o.scale || o.softcap;
}

class Maker {
 public:
  Maker(const AttentionOptions& options, const Dump& dump, int layer) : options_(options), dump_(dump), layer_(layer) {}

  Problem make() {
    lengths("cumulative_query_lengths", problem_.inputs.cumulative_query_lengths);
    lengths("cumulative_key_lengths", problem_.inputs.cumulative_key_lengths);
    problem_.packed = static_cast<bool>(problem_.inputs.cumulative_query_lengths);
    queries_keys_values();
    look_for_nan(problem_.inputs.query, "q");
    look_for_nan(problem_.inputs.key, "k");
    look_for_nan(problem_.inputs.value, "v");
    problem_.sizes = sizes_of(problem_.inputs);
    formula();
    if (problem_.attention.dropout() > 0) problem_.notes.emplace_back("dropout acts in training only: not used");
    lengths("key_lengths", problem_.inputs.key_lengths);
    lengths("q_offset", problem_.inputs.query_offset);
    lengths("key_start", problem_.inputs.key_start);
    tables();
    if (options_.gradients) loss();
    return std::move(problem_);
  }

 private:
  const std::string* option(const std::string& name) const {
    const auto at = options_.tensors.find(name);
    return at == options_.tensors.end() || at->second.empty() ? nullptr : &at->second;
  }
  bool given(const std::string& name) const { return option(name) != nullptr || dump_.has(layer_, name); }

  /// The same of a tensor that came from outside: one of more than four axes is refused under its name.
  View<const void> keep(Array array, const std::string& name) {
    if (array.shape().size() > size_t{kMaxRank})
      throw ShapeError(fmt::format("{} has the shape {{{}}}, expected at most four axes {{B, H, L, D}}; reshape it",
                                   name, fmt::join(array.shape(), ", ")));
    return keep(std::move(array));
  }
  View<const void> keep(Array array) {
    problem_.memory.push_back(std::move(array));
    return problem_.memory.back().view();
  }

  /// From the option, else from the dump, else nothing.
  View<const void> load(const std::string& name) {
    if (const std::string* where = option(name)) {
      auto typed = typed_tensor(*where, name);
      return keep(typed ? std::move(*typed) : read_tensor(*where), name);
    }
    auto found = dump_.find(layer_, name);
    if (!found) return {};
    if (const auto other = dump_.other_name(layer_, name))
      problem_.notes.push_back(
          fmt::format("{} is {} in the file, [{}]", name, *other, fmt::join(found->shape(), ", ")));
    return keep(std::move(*found), name);
  }

  void lengths(const std::string& name, View<const int32_t>& field) {
    const View<const void> x = load(name);
    if (x) field = keep(to_int32(x, name)).as<const int32_t>();
  }

  void queries_keys_values() {
    Inputs& in = problem_.inputs;
    if (makes_projections()) return projections();
    if (option("heads") != nullptr)
      throw OptionError("--heads: it cuts x wq into heads; q, k and v have theirs already");
    for (const char* name : {"q", "k"}) expect(name);  // before the first of them is read
    in.query = needed("q");
    in.key = needed("k");
    in.value = load("v");
    if (!in.value) {
      problem_.has_values = false;
      in.value = no_values(in.key);
    }
    if (problem_.packed) return;
    problem_.missing_axes = std::max(0, 4 - in.query.rank);
    for (View<const void>* x : {&in.query, &in.key, &in.value}) *x = as_four_axes(*x);
  }

  View<const void> needed(const std::string& name) {
    expect(name);
    return load(name);
  }

  void expect(const std::string& name) const {
    if (given(name)) return;
    std::string file;
    if (dump_.is_single()) file = fmt::format(" ({} is one tensor without a name)", dump_.path());
    else if (!dump_.path().empty()) file = fmt::format(" ({} has none under that name)", dump_.path());
    std::string option = name;
    std::ranges::replace(option, '_', '-');
    throw OptionError(fmt::format("{}{} is missing{}; give --{} FILE.npy, or a file that has it", layer_prefix(layer_),
                                  name, file, option));
  }

  /// Tokens and weights instead of q, k and v: where options say so, or the file has no q.
  bool makes_projections() const {
    if (option("q") != nullptr) {
      if (option("x") != nullptr) throw OptionError("--q and --x: give q, k, v, or x with wq, wk, wv, not both");
      return false;
    }
    return option("x") != nullptr || (given("x") && given("wq") && !dump_.has(layer_, "q"));
  }

  void projections() {
    if (problem_.packed) throw OptionError("x: packed batches need q, k and v");
    for (const char* name : {"x", "wq", "wk"}) expect(name);
    const View<const void> x = needed("x"), wq = needed("wq"), wk = needed("wk"), wv = load("wv"), wo = load("wo");
    look_for_nan(wo, "wo");
    problem_.projections = understand_projections(x, wq, wk, wv, wo, heads(), options_.weight_layout);
    const Projections& p = *problem_.projections;
    const int64_t dim = p.outputs_of(wq) / p.heads, key_heads = p.outputs_of(wk) / dim;
    Inputs& in = problem_.inputs;
    in.query = keep(project(p, wq, dim));
    in.key = keep(project(p, wk, dim));
    if (wv) in.value = keep(project(p, wv, p.outputs_of(wv) / key_heads));
    else problem_.has_values = false, in.value = no_values(in.key);
    problem_.missing_axes = x.rank == 2 ? 1 : 0;
  }

  int64_t heads() {
    if (const View<const void> x = load("heads")) {
      const Array number = to_int32(x, "heads");
      if (number.size() != 1) throw ShapeError(fmt::format("heads: expected one number, got {}", shape_text(x)));
      return *static_cast<const int32_t*>(number.data());
    }
    problem_.notes.emplace_back("heads: not said, so q = x wq is taken as one head; see --heads");
    return 1;
  }

  /// NaN is computed with as the semantics say, but nobody wants it unawares, and a tensor of nothing else was never filled.
  void look_for_nan(View<const void> x, const char* name) {
    if (!x || !is_floating(x.dtype)) return;
    const int64_t count = count_nan(x);
    if (count == 0) return;
    if (count == x.size())
      throw FileError(fmt::format("{} {} holds no number: all its values are NaN; save it again", name, shape_text(x)));
    problem_.notes.push_back(
        fmt::format("{} of the {} values of {} are NaN: rows that see them become NaN", count, x.size(), name));
  }

  /// From --attention, else from the other options, else from the file's .json, else from the tensors that there are.
  void formula() {
    if (!options_.text.empty()) {
      if (has_named_options(options_) || !options_.align.empty()) {
        throw OptionError(
            "--attention says the whole formula; put the other options into its text, or leave --attention out");
      }
      problem_.attention = Attention::parse(options_.text);
    } else if (dump_.sidecar().attention.empty() || has_formula_options(options_) || !options_.align.empty()) {
      formula_of_options();
      if (!options_.scale) scale_of_file();
    } else {
      formula_of_sidecar();
      if (!problem_.attention.scale()) scale_of_file();
    }
    if (has_formula_options(options_) && !dump_.sidecar().attention.empty())
      problem_.notes.push_back(fmt::format("the attention in {} ({}) is not used: options say another",
                                           dump_.sidecar().path, dump_.sidecar().attention));
  }

  void formula_of_sidecar() {
    try {
      problem_.attention = Attention::parse(dump_.sidecar().attention);
    } catch (const OptionError& e) {
      throw FileError(fmt::format("the attention in {}: {}", dump_.sidecar().path, without_function(e.what())));
    }
  }

  /// A tensor of one number, else what the .json says. 1 / sqrt(D) is what is computed anyway.
  void scale_of_file() {
    std::optional<double> scale = dump_.sidecar().scale;
    if (const View<const void> x = load("scale")) {
      if (x.size() != 1) throw ShapeError(fmt::format("scale: expected one number, got {}", shape_text(x)));
      scale = element(x, 0, 0, 0, 0);
    }
    if (scale && *scale != default_scale(problem_.sizes)) problem_.attention.scale(*scale);
  }

  /// Modifiers in the order of the semantics: soft-cap, ALiBi, bias.
  void formula_of_options() {
    Attention& a = problem_.attention;
    if (!given("keep_mask") && !given("ignore_mask")) dump_.expect_clear_masks();
    if (options_.causal) a.visible(Causal{});
    if (!options_.window.empty()) a.visible(window());
    if (given("document_ids") || given("query_documents")) a.visible(Documents{});
    if (given("keep_mask")) a.visible(KeepMask{});
    if (given("ignore_mask")) a.visible(IgnoreMask{});
    if (options_.softcap) a.score(SoftCap{*options_.softcap});
    if (wants_alibi()) a.score(Alibi{});
    if (given("bias")) a.score(Bias{});
    if (given("sinks")) a.weights(SinkSoftmax{});
    if (options_.zero_key) a.zero_key();
    if (options_.scale) a.scale(*options_.scale);
    if (options_.tiled_heads) a.heads(HeadMapping::kTiled);
    if (!options_.align.empty()) a.align(options_.align == "top_left" ? Align::kTopLeft : Align::kBottomRight);
  }

  bool wants_alibi() const { return options_.alibi || dump_.has(layer_, "alibi_slopes"); }

  Window window() const {
    const std::vector<int32_t> sides = numbers_of(options_.window, "--window");
    if (sides.size() != 2)
      throw OptionError(fmt::format("--window: expected LEFT,RIGHT, got '{}'; -1 is unlimited", options_.window));
    return {sides[0], sides[1]};
  }

  /// Whether the formula reads a tensor of that name. One that comes from an option is handed over in any case, so that
  /// the library says what is wrong.
  bool reads(const std::string& name) const {
    if (option(name) != nullptr) return true;
    if (name == "sinks") return problem_.attention.has_sinks();
    const auto named = [&](const auto& policies) {
      return std::any_of(policies.begin(), policies.end(), [&](const auto& p) {
        const auto& tensors = p->about().tensors;
        return std::find(tensors.begin(), tensors.end(), name) != tensors.end();
      });
    };
    return named(problem_.attention.patterns()) || named(problem_.attention.scores());
  }

  /// A tensor that the formula reads; nothing where it does not, with a note where the file has one.
  View<const void> table(const std::string& name) {
    if (reads(name)) return load(name);
    if (dump_.has(layer_, name))
      problem_.notes.push_back(fmt::format("{} is in the file, but --attention does not name it: not used", name));
    return {};
  }

  void tables() {
    Inputs& in = problem_.inputs;
    for (const char* name : {"keep_mask", "ignore_mask", "bias", "sinks"}) {
      if (reads(name)) expect(name);
    }
    in.keep_mask = fit(table("keep_mask"), "keep_mask");
    in.ignore_mask = fit(table("ignore_mask"), "ignore_mask");
    in.bias = fit(table("bias"), "bias");
    in.sinks = table("sinks");
    in.alibi_slopes = table("alibi_slopes");
    if (!in.alibi_slopes && reads("alibi_slopes")) default_slopes();
    look_for_nan(in.bias, "bias");
    look_for_nan(in.sinks, "sinks");
    look_for_nan(in.alibi_slopes, "alibi_slopes");
    in.query_documents = documents("query_documents");
    in.key_documents = documents("key_documents");
  }

  void default_slopes() {
    const std::vector<float> slopes = alibi_slopes(static_cast<int>(problem_.sizes.heads));
    Array a(DType::kFloat32, {static_cast<int64_t>(slopes.size())});
    std::copy(slopes.begin(), slopes.end(), static_cast<float*>(a.data()));
    problem_.inputs.alibi_slopes = keep(std::move(a));
    problem_.notes.push_back(fmt::format("alibi: the usual slopes of {} heads, {:.4g} to {:.4g}", slopes.size(),
                                         slopes.front(), slopes.back()));
  }

  void loss() {
    if (!given("dout"))
      throw OptionError(fmt::format(
          "{}dout is missing, the gradient of a loss by out; give --dout (1 is that of the sum of out), or a file that has it",
          layer_prefix(layer_)));
    set_loss(problem_, load("dout"), load("dlse"));
  }

  /// "document_ids" are those of both sides of self-attention.
  View<const void> documents(const std::string& name) {
    if (!reads("query_documents") && !given("document_ids")) return {};
    const View<const void> x = load(given(name) ? name : "document_ids");
    if (!x) return {};
    const View<const void> ids = keep(to_int32(x, name));
    return ids.rank == 1 ? with_axes(ids, {-1, 0}) : ids;
  }

  /// A mask or a bias as {B, H, L, S}, whatever axes the file left out. Ambiguous ones are refused.
  View<const void> fit(View<const void> x, const std::string& name) {
    const Sizes& s = problem_.sizes;
    if (x.rank == 2) {
      const bool padding = name != "bias" && x.shape[0] == s.batch && x.shape[1] == s.keys;
      const bool square = x.shape[0] == s.queries && x.shape[1] == s.keys;
      if (padding && square && s.batch > 1) refuse(x, name, "{B, S} and {L, S}");
      if (padding && !(square && s.batch == 1)) {
        problem_.notes.push_back(
            fmt::format("{} {}: taken as {{B, S}}, one entry for each key (as {{B, 1, 1, S}})", name, shape_text(x)));
        return with_axes(x, {0, -1, -1, 1});
      }
      return with_axes(x, {-1, -1, 0, 1});
    }
    if (x.rank == 3) {
      if (s.batch > 1 && s.batch == s.heads) refuse(x, name, "{B, L, S} and {H, L, S}");
      return x.shape[0] == s.batch && s.batch > 1 ? with_axes(x, {0, -1, 1, 2}) : with_axes(x, {-1, 0, 1, 2});
    }
    return x;
  }
  [[noreturn]] static void refuse(View<const void> x, const std::string& name, const char* readings) {
    throw ShapeError(fmt::format("{} {} can mean {}; save it with four axes {{B, H, L, S}}, 1 where it is shared", name,
                                 shape_text(x), readings));
  }

  const AttentionOptions& options_;
  const Dump& dump_;
  int layer_;
  Problem problem_;
};

}  // namespace

bool has_formula_options(const AttentionOptions& o) {
  const auto given = [&](const char* name) { return o.tensors.contains(name) && !o.tensors.at(name).empty(); };
  return !o.text.empty() || has_named_options(o) || o.alibi || std::ranges::any_of(kFormulaTensors, given);
}

void expect_no_input(const std::string& option, const std::string& output, const std::string& file,
                     const AttentionOptions& options) {
  const auto refuse_same = [&](const std::string& input) {
    std::error_code ignored;
    if (!input.empty() && std::filesystem::equivalent(input, output, ignored))
      throw OptionError(fmt::format("{} {}: it would replace the input {}; give another name", option, output, input));
  };
  refuse_same(file);
  if (!file.empty()) refuse_same(sidecar_path(file));
  for (const auto& [name, where] : options.tensors) refuse_same(file_of(where));
}

Problem make_problem(const AttentionOptions& options, const Dump& dump, int layer) {
  return Maker(options, dump, layer).make();
}

}  // namespace qkv::cli
