#include "nn/check.h"

namespace qkv::nn::check {
namespace {

void floating(const char* function, const char* name, const View<const void>& v) {
  if (!is_floating(v.dtype))
    dtype_error("{}: {} has type {}, expected float32, float64, float16 or bfloat16; convert it", function, name,
                v.dtype);
}

void type(const Caller& caller, const char* name, const View<const void>& v) {
  floating(caller.function, name, v);
  const bool is_double = v.dtype == DType::kFloat64;
  if (is_double != (caller.arithmetic == DType::kFloat64))
    dtype_error("{}: {} has type {}, expected {}; float64 goes with float64 alone, convert one of them",
                caller.function, name, v.dtype, is_double ? "float32, float16 or bfloat16" : "float64");
}

void contiguous_columns(const char* function, const char* name, const View<const void>& v) {
  if (v.shape[1] > 1 && v.strides[1] != 1)
    shape_error("{}: {} has a step of {} between columns, expected 1; copy it", function, name, v.strides[1]);
}

}  // namespace

void data(const char* function, const char* name, const View<const void>& v) {
  if (v.size() == 0) return;
  if (v.data == nullptr)
    shape_error("{}: {} of shape {} has no data; expected a pointer to its first element", function, name, v);
  const size_t alignment = size_of(v.dtype);
  if (reinterpret_cast<uintptr_t>(v.data) % alignment != 0)
    shape_error("{}: {} lies at an address that is no multiple of {}, the size of {}; copy it", function, name,
                alignment, v.dtype);
}

Caller matrix(const char* function, const char* name, const View<const void>& v) {
  if (v.rank != 2)
    shape_error("{}: {} has shape {}, expected {{rows, columns}}; view all axes but the last as one", function, name,
                v);
  floating(function, name, v);
  contiguous_columns(function, name, v);
  data(function, name, v);
  return {function, v.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32};
}

void matrix(const Caller& caller, const char* name, const View<const void>& v, int64_t rows, int64_t columns) {
  if (v.rank != 2 || v.shape[0] != rows || v.shape[1] != columns)
    shape_error("{}: {} has shape {}, expected {{{}, {}}}; allocate it so", caller.function, name, v, rows, columns);
  type(caller, name, v);
  contiguous_columns(caller.function, name, v);
  data(caller.function, name, v);
}

void vector(const Caller& caller, const char* name, const View<const void>& v, int64_t size) {
  if (v.rank != 1 || v.shape[0] != size)
    shape_error("{}: {} has shape {}, expected {{{}}}; allocate it so", caller.function, name, v, size);
  type(caller, name, v);
  if (size > 1 && v.strides[0] != 1)
    shape_error("{}: {} has a step of {} between elements, expected 1; copy it", caller.function, name, v.strides[0]);
  data(caller.function, name, v);
}

void saved(const Caller& caller, const char* name, const View<const void>& v, int64_t size) {
  vector(caller, name, v, size);
  if (v.dtype != caller.arithmetic)
    dtype_error("{}: {} has type {}, expected {}, the type of arithmetic; allocate it so", caller.function, name,
                v.dtype, caller.arithmetic);
}

}  // namespace qkv::nn::check
