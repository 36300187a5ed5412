// Steps of training: forward, a loss, backward, and down the gradient. What learns is a table by relative distance, the tensor of
// a score modifier of one's own, whose derivative nobody has to write.
#include <qkv/backward.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

constexpr int kDistances = 8;

/// score' = score + table[distance]; what is farther shares the last entry.
struct DistanceTable {
  static constexpr std::string_view kName = "distance_table";
  qkv::Parameter table{"table"};  // {kDistances}
  auto operator()(auto score, qkv::Site at, auto& read) const {
    return score + read(table, std::min(std::abs(at.query - at.key), kDistances - 1));
  }
  auto parameters() { return std::tie(table); }
};

int main() {
  constexpr int64_t kLength = 32, kDim = 8;
  constexpr size_t kSize = kLength * kDim;
  std::vector<float> q(kSize), k(kSize), v(kSize), out(kSize), dout(kSize), row_max(kLength), row_sum(kLength);
  std::vector<float> table(kDistances), dtable(kDistances);
  for (size_t n = 0; n < kSize; ++n) {
    q[n] = std::sin(0.37f * float(n));
    k[n] = std::cos(0.23f * float(n));
    v[n] = std::sin(0.71f * float(n * n));
  }
  const auto tensor = [](std::vector<float>& x) { return qkv::View<float>(x.data(), {1, 1, kLength, kDim}); };
  const auto rows = [](std::vector<float>& x) { return qkv::View<float>(x.data(), {1, 1, kLength}); };
  const auto entries = [](std::vector<float>& x) { return qkv::View<float>(x.data(), {kDistances}); };

  qkv::Attention attention;
  attention.visible(qkv::Causal{}).score(DistanceTable{});
  const qkv::Inputs inputs{
      .query = tensor(q), .key = tensor(k), .value = tensor(v), .parameters = {{"table", entries(table)}}};

  double first = 0, loss = 0;
  for (int step = 0; step < 5; ++step) {
    qkv::forward(attention, inputs, {.out = tensor(out), .row_max = rows(row_max), .row_sum = rows(row_sum)});

    // Every query is to find the value before its own: mean squared difference.
    loss = 0;
    for (size_t n = 0; n < kSize; ++n) {
      const float difference = out[n] - (n < kDim ? v[n] : v[n - kDim]);
      loss += double(difference * difference) / kSize;
      dout[n] = 2 * difference / kSize;
    }
    qkv::backward(attention, inputs,
                  {.out = tensor(out), .dout = tensor(dout), .row_max = rows(row_max), .row_sum = rows(row_sum)},
                  {.dparameters = {{"table", entries(dtable)}}});

    std::printf("step %d: loss %.4f, table[1] %.2f\n", step, loss, double(table[1]));
    if (step == 0) first = loss;
    for (size_t n = 0; n < kDistances; ++n) table[n] -= 10 * dtable[n];
  }
  return loss < first ? 0 : 1;
}
