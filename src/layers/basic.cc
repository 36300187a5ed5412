// Layers of one or two parameters.
#include <algorithm>

#include "core/format.h"
#include "qkv/layers.h"

namespace qkv::nn {
namespace {

void expect_positive(const char* layer, const char* name, int64_t n) {
  if (n < 1) option_error("{}: {} is {}, expected 1 or more", layer, name, n);
}

void fill_with_ones(Parameter& p) {
  if (p.value.dtype() == DType::kFloat64) std::fill_n(static_cast<double*>(p.value.data()), p.value.size(), 1.0);
  else std::fill_n(static_cast<float*>(p.value.data()), p.value.size(), 1.0F);
  p.changed();
}

/// The type of parameters. Throws DtypeError for others than float32 and float64: 16-bit training keeps float32 masters.
DType parameter_type(const char* layer, DType type) {
  if (type != DType::kFloat32 && type != DType::kFloat64)
    dtype_error("{}: parameters of {}, expected float32 or float64; 16-bit numbers are the tape's storage", layer,
                type);
  return type;
}

std::optional<Parameter> vector_if(bool is_wanted, DType type, int64_t size) {
  if (!is_wanted) return std::nullopt;
  std::optional<Parameter> p(std::in_place, type, std::vector<int64_t>{size});
  p->decays = false;
  return p;
}

}  // namespace

// ---- Linear ----

Linear::Linear(const Options& o) {
  expect_positive("Linear", "in", o.in), expect_positive("Linear", "out", o.out);
  const DType type = parameter_type("Linear", o.dtype);
  weight.value = Array(type, {o.out, o.in});
  bias = vector_if(o.has_bias, type, o.out);
}

Variable Linear::operator()(Tape& tape, const Variable& x) { return linear(tape, x, weight, bias ? &*bias : nullptr); }

void Linear::visit(const std::string& prefix, const Visitor& f) {
  f(prefix + "weight", weight);
  if (bias) f(prefix + "bias", *bias);
}

// ---- Norm ----

Norm::Norm(const Options& o) : kind_(o.kind), epsilon_(o.epsilon) {
  expect_positive("Norm", "dim", o.dim);
  const DType type = parameter_type("Norm", o.dtype);
  weight.value = Array(type, {o.dim});
  weight.decays = false;
  fill_with_ones(weight);
  bias = vector_if(o.has_bias && o.kind == NormKind::kLayer, type, o.dim);
}

Variable Norm::operator()(Tape& tape, const Variable& x) {
  if (kind_ == NormKind::kRms) return rms_norm(tape, x, &weight, epsilon_);
  return layer_norm(tape, x, &weight, bias ? &*bias : nullptr, epsilon_);
}

void Norm::visit(const std::string& prefix, const Visitor& f) {
  f(prefix + "weight", weight);
  if (bias) f(prefix + "bias", *bias);
}

}  // namespace qkv::nn
