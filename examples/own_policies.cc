// Runs the policies of own_policies.h: built in C++, and by name from a text.
#include "own_policies.h"

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  constexpr int64_t kLength = 64, kHeadDim = 16;
  std::vector<float> q(kLength * kHeadDim), k(q.size()), v(q.size()), out(q.size()), row_max(kLength), row_sum(kLength);
  for (size_t n = 0; n < q.size(); ++n) {
    q[n] = std::sin(0.37f * float(n));
    k[n] = std::cos(0.23f * float(n));
    v[n] = std::sin(0.11f * float(n));
  }
  const auto tensor = [](std::vector<float>& x) { return qkv::View<float>(x.data(), {1, 1, kLength, kHeadDim}); };
  const auto row = [](std::vector<float>& x) { return qkv::View<float>(x.data(), {1, 1, kLength}); };
  const qkv::Inputs inputs{.query = tensor(q), .key = tensor(k), .value = tensor(v)};

  qkv::Attention own;
  own.visible(Prompt{8}).visible(Strided{2}).score(Decay{0.05f});
  qkv::forward(own, inputs, {.out = tensor(out), .row_max = row(row_max), .row_sum = row(row_sum)});

  FarWeight far{.distance = 16};
  qkv::observe(own, inputs, {row(row_max), row(row_sum)}, {far});
  std::printf("%.1f %% of the weight goes farther than %d positions\n", 100 * far.far / far.all, far.distance);

  qkv::Vocabulary words;
  words.pattern<Prompt>().pattern<Strided>().modifier<Decay>();
  const auto same = qkv::Attention::parse("prompt:8 strided:2 | decay:0.05 | softmax", words);
  std::printf("\"%s\" is the same attention: %s\n", own.text().c_str(), same == own ? "yes" : "no");
  return same == own ? 0 : 1;
}
