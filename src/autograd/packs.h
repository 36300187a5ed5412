// Weight matrices in the order in which products read them, made again where the parameter has changed.
#pragma once
#include <map>
#include <tuple>
#include <utility>

#include "nn/product.h"
#include "qkv/operations.h"

namespace qkv::nn::detail {

struct Packs {
  template <class T> struct Pack {
    PackedMatrix<T> matrix;
    uint64_t version = 0;
    bool is_made = false;
  };
  /// Which rows, rounded to which type, for y = x W^T (transposed) or dx = dy W.
  using Key = std::tuple<int64_t, int64_t, DType, bool>;
  std::map<Key, Pack<float>> of_float;
  std::map<Key, Pack<double>> of_double;

  template <class T> Pack<T>& find(const Key& key) {
    if constexpr (sizeof(T) == sizeof(double)) return of_double[key];
    else return of_float[key];
  }
};

}  // namespace qkv::nn::detail
