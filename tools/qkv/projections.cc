#include "qkv/projections.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "qkv/error.h"
#include "qkv/views.h"

namespace qkv::cli {

namespace {

struct Named {
  const char* name;
  View<const void> view;
};

void expect_matrix(const Named& w) {
  if (w.view.rank != 2)
    throw ShapeError(
        fmt::format("{}: expected two axes, {{in, out}} or {{out, in}}, got {}", w.name, shape_text(w.view)));
  if (!is_floating(w.view.dtype))
    throw DtypeError(fmt::format("{}: expected a floating-point tensor, got {}", w.name, name(w.view.dtype)));
}

bool is_symmetric(View<const void> w) {
  if (w.shape[0] != w.shape[1]) return false;
  for (int64_t i = 0; i < w.shape[0]; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      if (element(w, i, j, 0, 0) != element(w, j, i, 0, 0)) return false;
    }
  }
  return true;
}

WeightLayout layout_of(const std::array<Named, 3>& weights, int64_t inputs, const std::string& asked) {
  if (!asked.empty()) return asked == "in_out" ? WeightLayout::kInOut : WeightLayout::kOutIn;
  const Named* unclear = nullptr;
  for (const Named& w : weights) {
    const bool in_out = w.view.shape[0] == inputs, out_in = w.view.shape[1] == inputs;
    if (in_out != out_in) return in_out ? WeightLayout::kInOut : WeightLayout::kOutIn;
    if (in_out && unclear == nullptr && !is_symmetric(w.view)) unclear = &w;
  }
  if (unclear == nullptr) return WeightLayout::kInOut;
  throw ShapeError(fmt::format(
      "{} {} can be {{in, out}}, as in q = x wq, or {{out, in}}, as torch.nn.Linear keeps it; say which, with "
      "--weight-layout in_out or --weight-layout out_in",
      unclear->name, shape_text(unclear->view)));
}

void expect_inputs(const Projections& p, const Named& w, int64_t inputs, const std::string& because) {
  if (p.inputs_of(w.view) == inputs) return;
  throw ShapeError(fmt::format("{} {}: expected {} {}, {}, got {} (weights are taken as {})", w.name,
                               shape_text(w.view), inputs, p.layout == WeightLayout::kInOut ? "rows" : "columns",
                               because, p.inputs_of(w.view),
                               p.layout == WeightLayout::kInOut ? "{in, out}" : "{out, in}"));
}

int64_t part(int64_t whole, int64_t parts, const char* what) {
  if (parts > 0 && whole % parts == 0 && whole > 0) return whole / parts;
  throw ShapeError(fmt::format("{}: {} numbers do not make {} heads of one size; see --heads", what, whole, parts));
}

/// Rounded once.
void put(double value, DType type, void* to, size_t at) {
  switch (type) {
    case DType::kFloat64: static_cast<double*>(to)[at] = value; break;
    case DType::kFloat16: static_cast<float16*>(to)[at] = float16(static_cast<float>(value)); break;
    case DType::kBFloat16: static_cast<bfloat16*>(to)[at] = bfloat16(static_cast<float>(value)); break;
    default: static_cast<float*>(to)[at] = static_cast<float>(value);
  }
}

/// {B, L, E}, whatever axes x has.
View<const void> three_axes(View<const void> x) { return x.rank == 2 ? with_axes(x, {-1, 0, 1}) : x; }

}  // namespace

double Projections::weight(View<const void> w, int64_t in, int64_t out) const {
  return layout == WeightLayout::kInOut ? element(w, in, out, 0, 0) : element(w, out, in, 0, 0);
}

Projections understand_projections(View<const void> x, View<const void> wq, View<const void> wk, View<const void> wv,
                                   View<const void> wo, int64_t heads, const std::string& asked) {
  if (x.rank != 2 && x.rank != 3)
    throw ShapeError(fmt::format("x: expected {{B, L, E}} or {{L, E}}, got {}", shape_text(x)));
  if (!is_floating(x.dtype))
    throw DtypeError(fmt::format("x: expected a floating-point tensor, got {}", name(x.dtype)));
  if (heads < 1) throw OptionError(fmt::format("--heads: expected at least 1, got {}", heads));
  Projections p{x, wq, wk, wv, wo, WeightLayout::kInOut, heads};
  const std::array<Named, 3> weights = {{{"wq", wq}, {"wk", wk}, {"wv", wv ? wv : wk}}};
  for (const Named& w : weights) expect_matrix(w);
  const int64_t width = x.shape[static_cast<size_t>(x.rank - 1)];
  p.layout = layout_of(weights, width, asked);
  for (const Named& w : weights) expect_inputs(p, w, width, "the width of x");
  const int64_t dim = part(p.outputs_of(wq), heads, "wq");
  if (p.outputs_of(wk) % dim != 0)
    throw ShapeError(
        fmt::format("wk {}: its {} numbers are no whole number of heads of size {}, which wq and --heads {} say",
                    shape_text(wk), p.outputs_of(wk), dim, heads));
  if (!wv) return p;
  const int64_t value_dim = part(p.outputs_of(wv), p.outputs_of(wk) / dim, "wv");
  if (!wo) return p;
  expect_matrix({"wo", wo});
  expect_inputs(p, {"wo", wo}, heads * value_dim, "all heads side by side");
  return p;
}

Array project(const Projections& p, View<const void> w, int64_t dim) {
  const View<const void> x = three_axes(p.x);
  const int64_t batches = x.shape[0], rows = x.shape[1], inputs = x.shape[2], outputs = p.outputs_of(w),
                heads = outputs / dim;
  std::vector<double> weight(static_cast<size_t>(inputs * outputs)), sum(static_cast<size_t>(outputs));
  for (int64_t e = 0; e < inputs; ++e) {
    for (int64_t c = 0; c < outputs; ++c) weight[static_cast<size_t>(e * outputs + c)] = p.weight(w, e, c);
  }
  Array result(x.dtype, {batches, heads, rows, dim});
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t e = 0; e < inputs; ++e) {
        const double factor = element(x, b, i, e, 0);
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += factor * weight[static_cast<size_t>(e) * sum.size() + c];
      }
      for (int64_t c = 0; c < outputs; ++c)
        put(sum[static_cast<size_t>(c)], x.dtype, result.data(),
            static_cast<size_t>(((b * heads + c / dim) * rows + i) * dim + c % dim));
    }
  }
  return result;
}

Array project_out(const Projections& p, View<const void> out) {
  const int64_t batches = out.shape[0], heads = out.shape[1], rows = out.shape[2], dim = out.shape[3],
                outputs = p.outputs_of(p.wo);
  Array result(out.dtype, {batches, rows, outputs});
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < outputs; ++c) {
        double sum = 0;
        for (int64_t n = 0; n < heads * dim; ++n) sum += element(out, b, n / dim, i, n % dim) * p.weight(p.wo, n, c);
        put(sum, out.dtype, result.data(), static_cast<size_t>((b * rows + i) * outputs + c));
      }
    }
  }
  return result;
}

}  // namespace qkv::cli
