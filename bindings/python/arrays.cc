#include "arrays.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "qkv/error.h"

namespace qkv::python {
namespace {

std::optional<DType> type_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  struct Row {
    Code code;
    uint8_t bits;
    DType type;
  };
  static constexpr Row kRows[] = {
      {Code::Float, 32, DType::kFloat32},   {Code::Float, 64, DType::kFloat64}, {Code::Float, 16, DType::kFloat16},
      {Code::Bfloat, 16, DType::kBFloat16}, {Code::Bool, 8, DType::kBool},      {Code::Int, 8, DType::kInt8},
      {Code::Int, 16, DType::kInt16},       {Code::Int, 32, DType::kInt32},     {Code::Int, 64, DType::kInt64},
      {Code::UInt, 8, DType::kUInt8},       {Code::UInt, 16, DType::kUInt16},   {Code::UInt, 32, DType::kUInt32},
      {Code::UInt, 64, DType::kUInt64}};
  for (const Row& r : kRows)
    if (type.lanes == 1 && type.code == uint8_t(r.code) && type.bits == r.bits) return r.type;
  return std::nullopt;
}

/// DLPack's table of C functions, of version 1, as far as it is used: borrows a tensor without a call of Python.
struct Exchange {
  uint32_t major, minor;
  const Exchange* previous;
  void* managed[3];
  int (*borrow)(void* object, nb::dlpack::dltensor* out);
};

/// What the array's own table says of it; false where it has none, or does not want to. NumPy's arrays have none.
bool borrow(nb::handle array, nb::dlpack::dltensor& out) {
  if (PyObject_CheckBuffer(array.ptr())) return false;
  const nb::object capsule = nb::steal(PyObject_GetAttrString(array.type().ptr(), "__dlpack_c_exchange_api__"));
  const auto* exchange =
      capsule ? static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api")) : nullptr;
  while (exchange && exchange->major > 1) exchange = exchange->previous;
  if (exchange && exchange->major == 1 && exchange->borrow(array.ptr(), &out) == 0 && out.strides) return true;
  PyErr_Clear();
  return false;
}

std::string name_of_type(nb::handle array) { return nb::cast<std::string>(nb::str(array.type().attr("__name__"))); }

/// A field that a name stands for. Absent arrays leave it alone.
template <class F> void each(const nb::dict& tensors, F f) {
  for (const auto& [key, array] : tensors)
    if (!array.is_none()) f(std::string_view(nb::cast<const char*>(key)), array);
}

template <class Struct, class Field> struct Name {
  std::string_view name;
  Field Struct::*field;
};
template <class Struct, class Field, size_t N>
Field* find(const Name<Struct, Field> (&names)[N], Struct& in, std::string_view name) {
  for (const auto& n : names)
    if (n.name == name) return &(in.*n.field);
  return nullptr;
}

View<const int32_t> integers(Arrays& arrays, std::string_view name, nb::handle array) {
  const View<const void> v = arrays.read(name, array);
  if (v.dtype != DType::kInt32)
    throw DtypeError(std::string(name) + " has type " + qkv::name(v.dtype) + ", expected int32; convert it");
  return v.as<const int32_t>();
}

template <class Void>
View<Void> view_of(std::string_view name, Void* data, std::optional<DType> type, std::span<const int64_t> shape,
                   const int64_t* strides) {
  if (!type)
    throw DtypeError(std::string(name) + " has elements of a type that qkv does not know; convert it to float32");
  if (shape.empty() || shape.size() > size_t{kMaxRank})
    throw ShapeError(std::string(name) + " has " + std::to_string(shape.size()) + " axes, expected 1 to 4");
  View<Void> v;
  v.dtype = *type;
  v.rank = int(shape.size());
  for (size_t n = 0; n < size_t{kMaxRank}; ++n) {
    v.shape[n] = n < shape.size() ? shape[n] : 1;
    v.strides[n] = n < shape.size() ? strides[n] : 0;
  }
  v.data = data;
  return v;
}

[[noreturn]] void unknown(const char* what, std::string_view name) {
  throw OptionError(std::string(what) + " '" + std::string(name) + "' does not exist");
}

}  // namespace

template <class Array> auto Arrays::view(std::string_view name, nb::handle array) {
  using Void = std::conditional_t<std::is_same_v<Array, nb::ndarray<nb::ro, nb::device::cpu>>, const void, void>;
  View<Void> v;
  if (array.is_none()) return v;
  nb::dlpack::dltensor borrowed;
  if (borrow(array, borrowed) && borrowed.device.device_type == nb::device::cpu::value) {
    objects_.push_back(nb::borrow(array));
    void* data = static_cast<std::byte*>(borrowed.data) + borrowed.byte_offset;
    return view_of<Void>(name, data, type_of(borrowed.dtype), {borrowed.shape, size_t(borrowed.ndim)},
                         borrowed.strides);
  }
  bool is_bfloat16 = false;
  if (nb::isinstance<nb::tuple>(array)) {
    const auto [numbers, tag] = nb::cast<std::pair<nb::object, std::string>>(array);
    is_bfloat16 = tag == "bfloat16";
    array = numbers;  // the tuple holds it
  }
  Array a;
  if (!nb::try_cast<Array>(array, a))
    throw DtypeError(
        std::string(name) + " is a " + name_of_type(array) + ", expected a" +
        (std::is_const_v<Void> ? "n array" : " writable array") +
        " in the memory of the CPU: of NumPy, PyTorch, or anything that has __dlpack__ or the buffer protocol");
  std::optional<DType> type = type_of(a.dtype());
  if (is_bfloat16 && type == DType::kUInt16) type = DType::kBFloat16;
  kept_.emplace_back(a);
  return view_of<Void>(name, a.data(), type, {a.shape_ptr(), a.ndim()}, a.stride_ptr());
}

View<const void> Arrays::read(std::string_view name, nb::handle array) {
  return view<nb::ndarray<nb::ro, nb::device::cpu>>(name, array);
}
View<void> Arrays::write(std::string_view name, nb::handle array) {
  return view<nb::ndarray<nb::device::cpu>>(name, array);
}

Inputs inputs_of(const nb::dict& tensors, std::optional<uint64_t> dropout_seed, Arrays& arrays) {
  static constexpr Name<Inputs, View<const void>> kTensors[] = {{"query", &Inputs::query},
                                                                {"key", &Inputs::key},
                                                                {"value", &Inputs::value},
                                                                {"keep_mask", &Inputs::keep_mask},
                                                                {"ignore_mask", &Inputs::ignore_mask},
                                                                {"bias", &Inputs::bias},
                                                                {"alibi_slopes", &Inputs::alibi_slopes},
                                                                {"sinks", &Inputs::sinks},
                                                                {"query_documents", &Inputs::query_documents},
                                                                {"key_documents", &Inputs::key_documents},
                                                                {"dropout_keep", &Inputs::dropout_keep}};
  static constexpr Name<Inputs, View<const int32_t>> kIntegers[] = {
      {"key_lengths", &Inputs::key_lengths},
      {"query_offset", &Inputs::query_offset},
      {"key_start", &Inputs::key_start},
      {"cumulative_query_lengths", &Inputs::cumulative_query_lengths},
      {"cumulative_key_lengths", &Inputs::cumulative_key_lengths}};
  Inputs in;
  in.dropout_seed = dropout_seed;
  each(tensors, [&](std::string_view name, nb::handle array) {
    if (auto* view = find(kTensors, in, name)) *view = arrays.read(name, array);
    else if (auto* numbers = find(kIntegers, in, name)) *numbers = integers(arrays, name, array);
    else in.parameters.push_back({name, arrays.read(name, array)});
  });
  return in;
}

Outputs outputs_of(const nb::dict& tensors, Arrays& arrays) {
  static constexpr Name<Outputs, View<void>> kTensors[] = {{"out", &Outputs::out},
                                                           {"lse", &Outputs::lse},
                                                           {"row_max", &Outputs::row_max},
                                                           {"row_sum", &Outputs::row_sum},
                                                           {"weights", &Outputs::weights},
                                                           {"raw_scores", &Outputs::raw_scores},
                                                           {"modified_scores", &Outputs::modified_scores},
                                                           {"masked_scores", &Outputs::masked_scores}};
  static constexpr Name<RowStatistics, View<float>> kFloats[] = {
      {"entropy", &RowStatistics::entropy},       {"effective_keys", &RowStatistics::effective_keys},
      {"max_weight", &RowStatistics::max_weight}, {"mean_distance", &RowStatistics::mean_distance},
      {"sink_share", &RowStatistics::sink_share}, {"top_weights", &RowStatistics::top_weights}};
  static constexpr Name<RowStatistics, View<int32_t>> kIntegers[] = {{"max_index", &RowStatistics::max_index},
                                                                     {"visible_keys", &RowStatistics::visible_keys},
                                                                     {"top_indices", &RowStatistics::top_indices}};
  Outputs out;
  each(tensors, [&](std::string_view name, nb::handle array) {
    if (auto* view = find(kTensors, out, name)) *view = arrays.write(name, array);
    else if (auto* floats = find(kFloats, out.rows, name)) *floats = arrays.write(name, array).as<float>();
    else if (auto* numbers = find(kIntegers, out.rows, name)) *numbers = arrays.write(name, array).as<int32_t>();
    else if (name == "matrix_rows") out.matrix_rows = integers(arrays, name, array);
    else unknown("the output", name);
  });
  return out;
}

Upstream upstream_of(const nb::dict& tensors, Arrays& arrays) {
  static constexpr Name<Upstream, View<const void>> kTensors[] = {
      {"out", &Upstream::out},   {"lse", &Upstream::lse},         {"dout", &Upstream::dout},
      {"dlse", &Upstream::dlse}, {"row_max", &Upstream::row_max}, {"row_sum", &Upstream::row_sum}};
  Upstream up;
  each(tensors, [&](std::string_view name, nb::handle array) {
    if (auto* view = find(kTensors, up, name)) *view = arrays.read(name, array);
    else unknown("the upstream tensor", name);
  });
  return up;
}

Gradients gradients_of(const nb::dict& tensors, bool add, Arrays& arrays) {
  static constexpr Name<Gradients, View<void>> kTensors[] = {{"query", &Gradients::dquery},
                                                             {"key", &Gradients::dkey},
                                                             {"value", &Gradients::dvalue},
                                                             {"bias", &Gradients::dbias},
                                                             {"alibi_slopes", &Gradients::dalibi_slopes},
                                                             {"sinks", &Gradients::dsinks}};
  Gradients g;
  g.add = add;
  each(tensors, [&](std::string_view name, nb::handle array) {
    if (auto* view = find(kTensors, g, name)) *view = arrays.write(name, array);
    else g.dparameters.push_back({name, arrays.write(name, array)});
  });
  return g;
}

}  // namespace qkv::python
