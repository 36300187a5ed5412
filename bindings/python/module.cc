// qkv._core: the library's functions on arrays that are there already. The package around it has the names that people use.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "interrupt.h"
#include "messages.h"
#include "pictures.h"
#include "qkv/attention.h"
#include "qkv/backward.h"
#include "qkv/dropout.h"
#include "qkv/error.h"
#include "qkv/heads.h"
#include "qkv/masks.h"
#include "qkv/merge.h"
#include "qkv/observers.h"
#include "qkv/version.h"

namespace qkv::python {
namespace {

using namespace nb::literals;
using Seed = std::optional<uint64_t>;

double size(const View<const void>& v) { return double(v ? v.size() : 0); }

/// Operations of a forward pass over all pairs, to tell long calls from short ones.
double operations(const Inputs& in) {
  if (!in.query || !in.key || in.key.rank < 3) return 0;
  const double keys = in.cumulative_key_lengths ? double(in.key.shape[0]) : double(in.key.shape[2]);
  return 4 * size(in.query) * keys;
}

void forward_on(const Attention& a, const nb::dict& inputs, const nb::dict& outputs, Seed seed) {
  Arrays arrays;
  const Inputs in = inputs_of(inputs, seed, arrays);
  const Outputs out = outputs_of(outputs, arrays);
  run(operations(in), [&](const Call& call) { forward(a, in, out, call); });
}

void backward_on(const Attention& a, const nb::dict& inputs, const nb::dict& upstream, const nb::dict& gradients,
                 Seed seed, bool add) {
  Arrays arrays;
  const Inputs in = inputs_of(inputs, seed, arrays);
  const Upstream up = upstream_of(upstream, arrays);
  const Gradients g = gradients_of(gradients, add, arrays);
  run(2.5 * operations(in), [&](const Call& call) { backward(a, in, up, g, call); });
}

/// The sums that observe() makes: weights received by each key, the largest and the mean of each cell.
void observe_on(const Attention& a, const nb::dict& inputs, const nb::dict& sums, nb::handle received,
                nb::handle largest, nb::handle mean, int cell) {
  Arrays arrays;
  const Inputs in = inputs_of(inputs, {}, arrays);
  const Upstream left = upstream_of(sums, arrays);
  std::optional<Received> all;
  std::optional<Pyramid> pyramid;
  std::vector<ObserverRef> observers;
  if (const auto v = arrays.write("received", received)) observers.emplace_back(all.emplace(v.as<double>()));
  const auto largest_view = arrays.write("largest", largest), mean_view = arrays.write("mean", mean);
  if (largest_view || mean_view)
    observers.emplace_back(
        pyramid.emplace(largest_view.as<float>(), mean_view.as<float>(), in.query.shape[2], in.key.shape[2], cell));
  run(operations(in), [&](const Call& call) { observe(a, in, {left.row_max, left.row_sum}, observers, call); });
}

constexpr double kOfElement = 20;  // operations in the time that it takes to read, combine and write one number

double operations(const std::vector<Partial>& parts) {
  double elements = 0;
  for (const Partial& part : parts) elements += size(part.out);
  return kOfElement * elements;
}

std::vector<Partial> partials_of(const nb::list& outs, const nb::list& lses, Arrays& arrays) {
  if (outs.size() != lses.size())
    throw ShapeError("merge: " + std::to_string(outs.size()) + " outs and " + std::to_string(lses.size()) +
                     " lses; each part has one of both");
  std::vector<Partial> parts;
  for (size_t n = 0; n < outs.size(); ++n) parts.push_back({arrays.read("out", outs[n]), arrays.read("lse", lses[n])});
  return parts;
}

void merge_on(const nb::list& outs, const nb::list& lses, nb::handle sinks, nb::handle out, nb::handle lse) {
  Arrays arrays;
  const std::vector<Partial> parts = partials_of(outs, lses, arrays);
  const auto of_sinks = arrays.read("sinks", sinks);
  const auto to = arrays.write("out", out), to_lse = arrays.write("lse", lse);
  run(operations(parts), [&](const Call& call) { merge_partials(parts, of_sinks, to, to_lse, call); });
}

void merge_backward_on(const nb::list& outs, const nb::list& lses, nb::handle sinks, nb::handle dout, nb::handle dlse,
                       const nb::list& douts, const nb::list& dlses, nb::handle dsinks) {
  Arrays arrays;
  const std::vector<Partial> parts = partials_of(outs, lses, arrays);
  std::vector<PartialGradient> gradients;
  for (size_t n = 0; n < douts.size(); ++n)
    gradients.push_back({arrays.write("dout", douts[n]), arrays.write("dlse", dlses[n])});
  const auto of_sinks = arrays.read("sinks", sinks), up = arrays.read("dout", dout), up_lse = arrays.read("dlse", dlse);
  const MergeGradients to{gradients, arrays.write("dsinks", dsinks)};
  run(2 * operations(parts), [&](const Call& call) { merge_partials_backward(parts, of_sinks, up, up_lse, to, call); });
}

std::string path_of(const Attention& a, const nb::dict& inputs, Seed seed) {
  Arrays arrays;
  const Inputs in = inputs_of(inputs, seed, arrays);
  std::string text;
  run(operations(in), [&](const Call& call) { text = explain_path(a, in, call); });
  return text;
}

void keep_mask_on(const Attention& a, const nb::dict& inputs, nb::handle keep) {
  Arrays arrays;
  const Inputs in = inputs_of(inputs, {}, arrays);
  const View<bool> to = arrays.write("keep", keep).as<bool>();
  run(kOfElement * size(to), [&](const Call& call) { keep_mask_of(a, in, to, call); });
}

/// The errors of the library, by what Python calls such things.
void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& fault, void*) {
    try {
      std::rethrow_exception(fault);
    } catch (const DtypeError& e) {
      PyErr_SetString(PyExc_TypeError, for_callers(e.what()).c_str());
    } catch (const ArgumentError& e) {
      PyErr_SetString(PyExc_ValueError, for_callers(e.what()).c_str());
    } catch (const FileError& e) {
      PyErr_SetString(PyExc_OSError, for_callers(e.what()).c_str());
    } catch (const Unsupported& e) {
      PyErr_SetString(PyExc_NotImplementedError, for_callers(e.what()).c_str());
    } catch (const Cancelled& e) {
      PyErr_SetString(PyExc_KeyboardInterrupt, e.what());
    } catch (const Error& e) {
      PyErr_SetString(PyExc_RuntimeError, for_callers(e.what()).c_str());
    }
  });
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // what PyTorch and caches keep until the end of the process is no fault
  translate_errors();
  m.attr("__version__") = QKV_VERSION_STRING;
  nb::class_<Attention>(m, "Formula", "The formula of an attention, read from its text.")
      .def(
          "__init__", [](Attention* self, const std::string& text) { new (self) Attention(Attention::parse(text)); },
          "text"_a)
      .def_prop_ro("text", &Attention::text)
      .def_prop_ro("scale", [](const Attention& a) { return a.scale(); })
      .def_prop_ro("dropout", [](const Attention& a) { return a.dropout(); })
      .def("__eq__", [](const Attention& a, const Attention& b) { return a == b; });
  m.def("forward", &forward_on, "formula"_a, "inputs"_a, "outputs"_a, "seed"_a = nb::none());
  m.def("backward", &backward_on, "formula"_a, "inputs"_a, "upstream"_a, "gradients"_a, "seed"_a = nb::none(),
        "add"_a = false);
  m.def("observe", &observe_on, "formula"_a, "inputs"_a, "sums"_a, "received"_a.none(), "largest"_a.none(),
        "mean"_a.none(), "cell"_a);
  m.def("merge", &merge_on, "outs"_a, "lses"_a, "sinks"_a.none(), "out"_a, "lse"_a);
  m.def("merge_backward", &merge_backward_on, "outs"_a, "lses"_a, "sinks"_a.none(), "dout"_a, "dlse"_a.none(),
        "douts"_a, "dlses"_a, "dsinks"_a.none());
  m.def("explain_path", &path_of, "formula"_a, "inputs"_a, "seed"_a = nb::none());
  m.def("keep_mask", &keep_mask_on, "formula"_a, "inputs"_a, "keep"_a);
  m.def("alibi_slopes", &alibi_slopes, "heads"_a);
  m.def("set_num_threads", &set_num_threads, "threads"_a);
  m.def("num_threads", &num_threads,
        "How many threads a call may use: as set_num_threads() said, else QKV_THREADS, else as many as there are "
        "processors.\n\n>>> qkv.num_threads() >= 1\nTrue");
  add_pictures(m);
}

}  // namespace qkv::python
