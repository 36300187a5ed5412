#include "attention/row_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/format.h"

namespace qkv {
namespace {

template <class T> constexpr T kMinusInf = -std::numeric_limits<T>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kMostLinks = 1024;  // a row keeps them sorted by insertion

/// Keeps the list of row r falling; of equal scores the earlier column stays in front.
template <class T> void insert(T* score, int32_t* at, int n, T s, int32_t column) {
  int i = n - 1;
  for (; i > 0 && (at[i - 1] < 0 || s > score[i - 1]); --i) {
    score[i] = score[i - 1];
    at[i] = at[i - 1];
  }
  score[i] = s;
  at[i] = column;
}

}  // namespace

template <class T> void RowSumsSoFar<T>::carve(Carver& c, int lanes, int top_n) {
  top = top_n;
  centred = c.take<double>(lanes);
  distance = c.take<double>(lanes);
  largest = c.take<T>(lanes);
  largest_at = c.take<int32_t>(lanes);
  visible = c.take<int32_t>(lanes);
  top_score = c.take<T>(int64_t{lanes} * top);
  top_at = c.take<int32_t>(int64_t{lanes} * top);
}

template <class T> void RowSumsSoFar<T>::reset(int lanes) {
  std::fill_n(centred, lanes, 0.0);
  std::fill_n(distance, lanes, 0.0);
  std::fill_n(largest, lanes, kMinusInf<T>);
  std::fill_n(largest_at, lanes, -1);
  std::fill_n(visible, lanes, 0);
  std::fill_n(top_score, int64_t{lanes} * top, kMinusInf<T>);
  std::fill_n(top_at, int64_t{lanes} * top, -1);
}

template <class T> void RowSumsSoFar<T>::rescale(int rows, const T* before, const T* now, const T* alpha, const T* l) {
  for (int r = 0; r < rows; ++r) {
    if (alpha[r] == T(1) || before[r] == kMinusInf<T>) continue;
    centred[r] = (centred[r] + double(l[r]) * (double(before[r]) - double(now[r]))) * double(alpha[r]);
    distance[r] *= double(alpha[r]);
  }
}

template <class T>
void RowSumsSoFar<T>::add(const RowTile& t, const T* s, const T* p, int stride, int keys, int32_t first_column,
                          int32_t key_start, const T* m) {
  for (int j = 0; j < keys; ++j) {
    const T* score = s + int64_t{j} * stride;
    const T* weight = p + int64_t{j} * stride;
    const int32_t position = first_column + j + key_start;
    for (int r = 0; r < t.rows; ++r) {
      const bool seen = !(score[r] == kMinusInf<T>);
      visible[r] += seen;
      centred[r] += seen ? double(weight[r]) * (double(score[r]) - double(m[r])) : 0.0;
      distance[r] += double(weight[r]) * std::abs(double(t.query[r]) - double(position));
    }
    for (int r = 0; r < t.rows; ++r) {
      if (!(score[r] > largest[r])) continue;
      largest[r] = score[r];
      largest_at[r] = first_column + j;
    }
    if (top == 0) continue;
    for (int r = 0; r < t.rows; ++r)
      if (score[r] > top_score[r * top + top - 1])
        insert(top_score + r * top, top_at + r * top, top, score[r], first_column + j);
  }
}

template <class T>
void RowSumsSoFar<T>::merge(int rows, const T* m, const T* l, const RowSumsSoFar& later, const T* later_m,
                            const T* later_l) {
  for (int r = 0; r < rows; ++r) {
    visible[r] += later.visible[r];
    const double together = std::max(double(m[r]), double(later_m[r]));
    const auto part = [&](double mine, double sum, double centre, double dist) {
      if (mine == -std::numeric_limits<double>::infinity()) return std::pair(0.0, 0.0);
      const double scale = std::exp(mine - together);
      return std::pair(scale * (centre + sum * (mine - together)), scale * dist);
    };
    const auto [c0, d0] = part(double(m[r]), double(l[r]), centred[r], distance[r]);
    const auto [c1, d1] = part(double(later_m[r]), double(later_l[r]), later.centred[r], later.distance[r]);
    centred[r] = c0 + c1;
    distance[r] = d0 + d1;
    if (later.largest[r] > largest[r]) {
      largest[r] = later.largest[r];
      largest_at[r] = later.largest_at[r];
    }
    for (int n = 0; n < top && later.top_at[r * top + n] >= 0; ++n) {
      const T s = later.top_score[r * top + n];
      if (s > top_score[r * top + top - 1])
        insert(top_score + r * top, top_at + r * top, top, s, later.top_at[r * top + n]);
    }
  }
}

RowStatisticsOutputs::RowStatisticsOutputs(const Bound& b, const RowStatistics& s, const char* f) {
  entropy = check_output(b, s.entropy, f, "entropy", DType::kFloat32, -1);
  effective_keys = check_output(b, s.effective_keys, f, "effective_keys", DType::kFloat32, -1);
  max_weight = check_output(b, s.max_weight, f, "max_weight", DType::kFloat32, -1);
  max_index = check_output(b, s.max_index, f, "max_index", DType::kInt32, -1);
  mean_distance = check_output(b, s.mean_distance, f, "mean_distance", DType::kFloat32, -1);
  sink_share = check_output(b, s.sink_share, f, "sink_share", DType::kFloat32, -1);
  visible_keys = check_output(b, s.visible_keys, f, "visible_keys", DType::kInt32, -1);
  const auto last_axis = [](const Layout& v) { return v.rank ? v.shape[size_t(v.rank - 1)] : int64_t{0}; };
  const int64_t n = std::max(last_axis(s.top_weights), last_axis(s.top_indices));
  if (n > kMostLinks)
    shape_error("{}: top_weights and top_indices keep {} links a row, expected at most {}; ask for weights instead", f,
                n, kMostLinks);
  top_weights = check_output(b, s.top_weights, f, "top_weights", DType::kFloat32, n);
  top_indices = check_output(b, s.top_indices, f, "top_indices", DType::kInt32, n);
  top = int(n);
  any = s.entropy || s.effective_keys || s.max_weight || s.max_index || s.mean_distance || s.sink_share ||
        s.visible_keys || n > 0;
}

template <class T>
void write_statistics(const RowStatisticsOutputs& to, const RowTile& t, const RowSumsSoFar<T>& sums, const T* m,
                      const T* l, const T* total_m, const T* total_l) {
  const auto put = [&](const RowsOf& out, int r, auto value, int64_t n = 0) {
    if (out) static_cast<decltype(value)*>(t.in(out, r))[n * out.column] = value;
  };
  for (int r = 0; r < t.rows; ++r) {
    const bool empty = sums.visible[r] == 0;
    const double sum = double(l[r]), whole = double(total_l[r]), shift = double(total_m[r]);
    // ln w = (s - m) - ln l
    const double entropy = empty ? 0 : std::max(0.0, std::log(sum) - sums.centred[r] / sum);
    const auto weight = [&](T score) { return float(std::exp(double(score) - shift) / whole); };
    const bool nan = std::isnan(sum) || std::isnan(whole);
    put(to.entropy, r, nan ? kNan : float(entropy));
    put(to.effective_keys, r, empty ? 0.0f : nan ? kNan : float(std::exp(entropy)));
    put(to.max_weight, r, empty ? 0.0f : weight(sums.largest[r]));
    put(to.max_index, r, sums.largest_at[r]);
    put(to.mean_distance, r, empty ? 0.0f : float(sums.distance[r] / sum));
    put(to.visible_keys, r, sums.visible[r]);
    const double keys = empty ? 0 : sum * std::exp(double(m[r]) - shift);
    put(to.sink_share, r, whole == 0 ? 0.0f : nan ? kNan : float(std::max(0.0, 1 - keys / whole)));
    for (int n = 0; n < sums.top; ++n) {
      const int32_t at = sums.top_at[r * sums.top + n];
      put(to.top_indices, r, at, n);
      put(to.top_weights, r, at < 0 ? 0.0f : weight(sums.top_score[r * sums.top + n]), n);
    }
  }
}

template struct RowSumsSoFar<float>;
template struct RowSumsSoFar<double>;
template void write_statistics(const RowStatisticsOutputs&, const RowTile&, const RowSumsSoFar<float>&, const float*,
                               const float*, const float*, const float*);
template void write_statistics(const RowStatisticsOutputs&, const RowTile&, const RowSumsSoFar<double>&, const double*,
                               const double*, const double*, const double*);

}  // namespace qkv
