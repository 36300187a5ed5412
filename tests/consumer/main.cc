// What somebody else's program does with an installed qkv: a call, a policy of its own, an error caught by its type.
#include <qkv/attention.h>
#include <qkv/version.h>

#include <cmath>
#include <cstdio>
#include <cstring>

struct Shift {
  float by = 0;
  auto operator()(auto score, qkv::Site) const { return score + by; }
};

int main() {
  float query[2] = {1, 2}, key[2] = {3, 4}, value[2] = {5, 6}, out[2] = {};
  const qkv::View<float> q(query, {1, 1, 2, 1}), k(key, {1, 1, 2, 1}), v(value, {1, 1, 2, 1}), o(out, {1, 1, 2, 1});
  qkv::Attention causal;
  causal.visible(qkv::Causal{}).score(Shift{0.5f});
  qkv::forward(causal, {.query = q, .key = k, .value = v}, {.out = o});

  bool refused = false;
  try {
    qkv::forward(causal, {.query = q, .key = k, .value = qkv::View<float>(value, {1, 1, 1, 1})}, {.out = o});
  } catch (const qkv::ShapeError&) {
    refused = true;
  }
  const float weight = 1 / (1 + std::exp(-2.0f));  // query 2 and keys 3, 4: scores 6 and 8
  const bool right = out[0] == 5 && std::abs(out[1] - (5 + weight)) < 1e-6f;
  std::printf("qkv %s: %g %g\n", qkv::version(), double(out[0]), double(out[1]));
  return right && refused && std::strcmp(qkv::version(), QKV_VERSION_STRING) == 0 ? 0 : 1;
}
