#include "run_cases/arrays.h"

#include <fmt/format.h>

#include <limits>
#include <span>

#include "qkv/error.h"

namespace run_cases {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 28;  // a file of cases holds small ones

}  // namespace

Array::Array(qkv::DType type, const std::vector<int64_t>& shape) : type_(type), shape_(shape), given_(true) {
  int64_t size = 1;
  for (const int64_t n : shape) {
    if (n < 0) throw Malformed(fmt::format("a size is {}", n));
    if (n > 0 && size > kMostElements / n)
      throw NotSupported(fmt::format("the shape {}: too large", shape_text(shape)));
    size *= n;
  }
  bytes_.resize(size_t(size) * size_of(type));
}

Array::Array(qkv::DType type, const Values& values) : Array(type, values.shape) {
  for (int64_t i = 0; i < values.size(); ++i) set(i, values.at(i));
}

qkv::View<void> Array::view() {
  if (!given_) return {};
  return {bytes_.data(), type_, qkv::Layout(std::span<const int64_t>(shape_))};
}

Values Array::values() const {
  Values values{shape_, {}};
  const auto size = int64_t(bytes_.size() / size_of(type_));
  for (int64_t i = 0; i < size; ++i) values.numbers.emplace_back(get(i));
  return values;
}

Number Array::get(int64_t i) const {
  switch (type_) {
    case qkv::DType::kFloat32: return reinterpret_cast<const float*>(bytes_.data())[i];
    case qkv::DType::kFloat64: return reinterpret_cast<const double*>(bytes_.data())[i];
    case qkv::DType::kFloat16: return float(reinterpret_cast<const qkv::float16*>(bytes_.data())[i]);
    case qkv::DType::kBool: return reinterpret_cast<const uint8_t*>(bytes_.data())[i];
    case qkv::DType::kInt32: return reinterpret_cast<const int32_t*>(bytes_.data())[i];
    default: throw std::logic_error("Array::get: no such type here");
  }
}

void Array::set(int64_t i, Number value) {
  switch (type_) {
    case qkv::DType::kFloat32: reinterpret_cast<float*>(bytes_.data())[i] = float(value); break;
    case qkv::DType::kFloat64: reinterpret_cast<double*>(bytes_.data())[i] = double(value); break;
    case qkv::DType::kFloat16: reinterpret_cast<qkv::float16*>(bytes_.data())[i] = qkv::float16(float(value)); break;
    case qkv::DType::kBool: reinterpret_cast<uint8_t*>(bytes_.data())[i] = value != 0; break;
    case qkv::DType::kInt32:
      if (!(value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()))
        throw Malformed(fmt::format("{} is no 32-bit integer", number_text(value)));
      reinterpret_cast<int32_t*>(bytes_.data())[i] = int32_t(value);
      break;
    default: throw std::logic_error("Array::set: no such type here");
  }
}

const Json& required(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) throw Malformed(fmt::format("\"{}\" is missing", key));
  return object.at(key);
}

}  // namespace run_cases
