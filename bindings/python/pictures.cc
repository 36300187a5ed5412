#include "pictures.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <type_traits>

#include "arrays.h"
#include "interrupt.h"
#include "qkv/error.h"
#include "qkv/explain.h"
#include "qkv/loss.h"
#include "qkv/names.h"
#include "qkv/part.h"
#include "qkv/see.h"
#include "qkv/see_page.h"

namespace qkv::python {
namespace {

using namespace nb::literals;
using Lists = std::vector<std::vector<std::string>>;

template <class T> T word(const char* option, const std::string& text, const std::map<std::string, T>& words) {
  if (const auto at = words.find(text); at != words.end()) return at->second;
  std::string known;
  for (const auto& [name, value] : words) known += (known.empty() ? "'" : ", '") + name + "'";
  throw OptionError(std::string(option) + " is '" + text + "', expected one of " + known);
}

/// What a text is for. 0 columns: as COLUMNS says, or 100.
struct Paper {
  bool terminal = false, unicode = true;
  int columns = 0, lines = 0;
  std::string color = "auto";

  cli::Screen screen() const {
    const auto when = word<cli::ColorWhen>(
        "color", color,
        {{"auto", cli::ColorWhen::kAuto}, {"always", cli::ColorWhen::kAlways}, {"never", cli::ColorWhen::kNever}});
    cli::Screen s = cli::screen_of({[](const char* name) { return std::getenv(name); }, terminal}, when);
    s.unicode = unicode;
    if (columns > 0) s.columns = columns;
    if (lines > 0) s.lines = lines;
    return s;
  }
};

/// What problems borrow from Python.
struct Borrowed {
  Arrays arrays;
  std::vector<nb::dict> names;

  cli::Problem problem(const Attention& a, const nb::dict& tensors) {
    names.push_back(tensors);
    return cli::problem_of(a, inputs_of(tensors, {}, arrays));
  }
};

/// Layers that can be drawn.
class Picture {
 public:
  Picture(const std::string& title, int head, int64_t query, std::optional<int64_t> batch, int top,
          const std::string& colors, Lists query_tokens, Lists key_tokens) {
    options_.title = title;
    options_.head = head;
    options_.row = query;
    options_.batch = batch.value_or(0);
    options_.one_batch = batch.has_value();
    options_.top = top;
    options_.scale = word<cli::Scale>(
        "colors", colors, {{"linear", cli::Scale::kLinear}, {"log", cli::Scale::kLog}, {"lift", cli::Scale::kLift}});
    options_.tokens.query_lists = std::move(query_tokens);
    options_.tokens.key_lists = std::move(key_tokens);
    options_.typed = false;
  }

  void add(const Attention& a, const nb::dict& tensors, int number) {
    cli::Problem problem = borrowed_.problem(a, tensors);
    const double pairs = problem.sizes.pairs() * static_cast<double>(problem.sizes.dim);
    operations_ += 20 * pairs;  // several passes
    work(4 * pairs, [&] { layers_.emplace_back(std::move(problem), number, progress_); });
    check();
  }
  void add_weights(nb::handle weights, bool at_the_end, int number) {
    const View<const void> w = borrowed_.arrays.read("weights", weights);
    const double size = 20 * static_cast<double>(w.size());
    operations_ += size;
    work(size, [&] { layers_.emplace_back(w, at_the_end ? Align::kBottomRight : Align::kUnset, number, progress_); });
    check();
  }

  std::string text(const Paper& paper, bool plain) {
    cli::SeeOptions o = options_;
    o.plain = plain;
    return see(o, paper.screen());
  }
  std::string json() {
    cli::SeeOptions o = options_;
    o.json = true;
    return see(o, {});
  }
  std::string page() {
    return work(operations_, [&] { return cli::page_of(options_, layers_); });
  }
  nb::bytes png() {
    cli::SeeOptions o = options_;
    o.row = -1;
    const auto file = work(operations_, [&] { return cli::png_of(cli::picture_of(o, layers_).image); });
    return nb::bytes(file.data(), file.size());
  }

 private:
  void check() {
    cli::check(options_, layers_.back());
    const cli::Layer& layer = layers_.back();
    for (int64_t b = 0; b < layer.batches(); ++b) tokens_of(layer, b);  // the checks alone
  }
  cli::Tokens tokens_of(const cli::Layer& layer, int64_t batch) const {
    return cli::find_tokens(options_.tokens, batch, layer.queries(), layer.keys());
  }
  std::string see(const cli::SeeOptions& o, const cli::Screen& screen) {
    return work(operations_, [&] { return cli::see_text(o, layers_, tokens_of(layers_.front(), o.batch), screen); });
  }

  /// Without the interpreter's lock; threads that share a picture wait for each other.
  template <class F> std::invoke_result_t<F> work(double operations, F f) {
    using Result = std::invoke_result_t<F>;
    std::optional<std::conditional_t<std::is_void_v<Result>, bool, Result>> result;
    run(operations, [&](const Call& call) {
      const std::lock_guard lock(mutex_);
      progress_.run_by(call);
      if constexpr (std::is_void_v<Result>) f();
      else result = f();
    });
    if constexpr (!std::is_void_v<Result>) return std::move(*result);
  }

  Borrowed borrowed_;
  cli::SeeOptions options_;
  cli::Progress progress_;
  std::vector<cli::Layer> layers_;
  double operations_ = 0;
  std::mutex mutex_;
};

/// Every step of one query.
class Explanation {
 public:
  Explanation(const Attention& a, const nb::dict& tensors, nb::handle dout, int64_t batch, int64_t head, int64_t query,
              Lists query_tokens, Lists key_tokens)
      : problem_(borrowed_.problem(a, tensors)) {
    const cli::Sizes& s = problem_.sizes;
    cli::expect_in_range("batch", batch, s.batch);
    cli::expect_in_range("head", head, s.heads);
    cli::expect_in_range("query", query, s.queries);
    if (const View<const void> by_out = borrowed_.arrays.read("dout", dout)) cli::set_loss(problem_, by_out, {});
    cli::TokenSource source;
    source.query_lists = std::move(query_tokens);
    source.key_lists = std::move(key_tokens);
    tokens_ = cli::find_tokens(source, batch, s.queries, s.keys);
    const auto size = [](const View<const void>& v) { return static_cast<double>(v ? v.size() : 0); };
    const double all = size(problem_.inputs.query) + size(problem_.inputs.key) + size(problem_.inputs.value);
    operations_ = 100 * static_cast<double>(s.keys) * static_cast<double>(s.dim + 10);
    run(operations_ + 10 * all + size(problem_.inputs.keep_mask), [&](const Call& call) {
      steps_ = cli::explain_query(problem_, batch, head, query, call);
      tensors_ = cli::facts_of_tensors(problem_, {}, call);
    });
  }

  Explanation(const Explanation&) = delete;
  Explanation& operator=(const Explanation&) = delete;

  std::string text(const Paper& paper, int top) const {
    const cli::Screen screen = paper.screen();
    return made([&](const Call&) { return cli::explanation_text(steps_, problem_, tensors_, tokens_, top, screen); });
  }
  std::string json() const {
    return made([&](const Call& call) { return cli::explanation_json(steps_, problem_, tensors_, tokens_, call); });
  }
  bool agrees() const {
    return std::all_of(steps_.agreements.begin(), steps_.agreements.end(), [](const auto& a) { return a.holds(); });
  }

 private:
  template <class F> std::string made(F f) const {
    std::string text;
    run(operations_, [&](const Call& call) { text = f(call); });
    return text;
  }

  Borrowed borrowed_;
  cli::Problem problem_;
  cli::Tokens tokens_;
  cli::Explanation steps_;
  std::vector<cli::TensorFacts> tensors_;
  double operations_ = 0;
};

/// The name of the format of dumps for a tensor that is called so, and whether it is that already.
std::optional<std::pair<std::string, bool>> dump_name(const std::string& name) {
  const auto known = cli::understand(name);
  if (!known) return std::nullopt;
  const std::string layer = known->layer < 0 ? "" : "layer" + std::to_string(known->layer) + ".";
  return std::pair(layer + known->tensor, known->exact);
}

}  // namespace

void add_pictures(nb::module_& m) {
  nb::class_<Paper>(m, "Paper")
      .def(
          "__init__",
          [](Paper* self, bool terminal, bool unicode, int columns, int lines, const std::string& color) {
            new (self) Paper{terminal, unicode, columns, lines, color};
          },
          "terminal"_a, "unicode"_a, "columns"_a, "lines"_a, "color"_a);
  nb::class_<Picture>(m, "Picture")
      .def(nb::init<const std::string&, int, int64_t, std::optional<int64_t>, int, const std::string&, Lists, Lists>(),
           "title"_a, "head"_a, "query"_a, "batch"_a.none(), "top"_a, "colors"_a, "query_tokens"_a, "key_tokens"_a)
      .def("add", &Picture::add, "formula"_a, "inputs"_a, "layer"_a)
      .def("add_weights", &Picture::add_weights, "weights"_a, "at_the_end"_a, "layer"_a)
      .def("text", &Picture::text, "paper"_a, "plain"_a)
      .def("json", &Picture::json)
      .def("page", &Picture::page)
      .def("png", &Picture::png);
  nb::class_<Explanation>(m, "Explanation")
      .def(nb::init<const Attention&, const nb::dict&, nb::handle, int64_t, int64_t, int64_t, Lists, Lists>(),
           "formula"_a, "inputs"_a, "dout"_a.none(), "batch"_a, "head"_a, "query"_a, "query_tokens"_a, "key_tokens"_a)
      .def("text", &Explanation::text, "paper"_a, "top"_a)
      .def("json", &Explanation::json)
      .def_prop_ro("agrees", &Explanation::agrees);
  m.def("dump_name", &dump_name, "name"_a);
}

}  // namespace qkv::python
